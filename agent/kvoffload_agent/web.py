"""Metrics, probes and the debug state, on a local address."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvoffload_agent.state import Health

MAX_PORT = 65535  # of TCP


class WebError(Exception):
    """The address can't be used; for the person who starts the agent."""


def make_app(
    *,
    registry: CollectorRegistry,
    health: Callable[[], Health],
    state: Callable[[], dict[str, Any]],
) -> web.Application:
    """Return ``/metrics``, ``/healthz``, ``/readyz`` and ``/debug/state``.

    ``/healthz`` only says that the event loop answers; ``/readyz`` that engines are served and
    configuration is there. ``/debug/state`` names pods and policies, so only this machine is told.
    """

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        found = health()
        return web.Response(text=f"{found.reason or 'ok'}\n", status=200 if found.ready else 503)

    async def debug(request: web.Request) -> web.Response:
        if not is_local(request.remote):
            return web.Response(text="/debug/state is for this machine only\n", status=403)
        return web.json_response(state())

    app = web.Application()
    app.add_routes(
        [
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/debug/state", debug),
        ]
    )
    return app


def is_local(remote: str | None) -> bool:
    """Return whether a peer's address is of this machine's loopback, or of a Unix socket."""
    if not remote:
        return True
    try:
        address = ipaddress.ip_address(remote)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@asynccontextmanager
async def serving(app: web.Application, address: str) -> AsyncIterator[str]:
    """Serve at ``HOST:PORT`` (port 0: any free one) or ``unix:PATH``; gives the real address.

    Raises:
        WebError: the address is malformed or taken.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            site = _site(runner, address)
            await site.start()
        except (OSError, ValueError) as error:
            raise WebError(
                f"cannot serve at {address}: {_why(error)}; give another address with --http "
                "HOST:PORT (port 0: any free one), or --http '' for none"
            ) from error
        bound = runner.addresses[0]
        yield f"unix:{bound}" if isinstance(bound, str) else f"{bound[0]}:{bound[1]}"
    finally:
        await runner.cleanup()


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return "the address is in use, perhaps by another agent"
    return str(error)


def _site(runner: web.AppRunner, address: str) -> web.BaseSite:
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        # A killed agent leaves its socket file; another agent's main socket was checked before.
        if path.exists() and not path.is_socket():
            raise ValueError("the path exists and is no socket: remove it or choose another")
        path.unlink(missing_ok=True)
        return web.UnixSite(runner, str(path))
    host, separator, port = address.rpartition(":")
    if not separator or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError(f"an address is HOST:PORT, with a port up to {MAX_PORT}, or unix:PATH")
    return web.TCPSite(runner, host or "127.0.0.1", int(port))


async def measure_loop(report: Callable[[float], None], *, period_seconds: float = 0.1) -> None:
    """Report how late the event loop runs, until cancelled: its gaps are engines' waits."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + period_seconds
        await asyncio.sleep(period_seconds)
        report(max(0.0, loop.time() - due))
