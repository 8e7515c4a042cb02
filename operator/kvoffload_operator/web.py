"""/healthz, /readyz and /metrics."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from kvoffload_operator.metrics import Metrics

# A loop that does not get to a one-second task for this long answers nothing in time either.
_STUCK_S: Final = 15.0


class Heartbeat:
    """Proof that the loop turns: a task that notes the time each second."""

    def __init__(self) -> None:
        self._at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._at = asyncio.get_running_loop().time()
            await asyncio.sleep(1.0)

    @property
    def alive(self) -> bool:
        """Whether the last beat is recent."""
        return asyncio.get_running_loop().time() - self._at < _STUCK_S


class WebServer:
    """Serves the three paths until it is closed.

    Args:
        host: Address to listen on; empty for all.
        port: Port, 0 for any.
        heartbeat: Liveness.
        checks: Readiness: each name with a function that says whether it is fulfilled.
        metrics: What to show.
        refresh: Called before metrics are shown, to set gauges.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        heartbeat: Heartbeat,
        checks: Mapping[str, Callable[[], bool]],
        metrics: Metrics,
        refresh: Callable[[], None],
    ) -> None:
        self._host = host or None
        self._port = port
        self._heartbeat = heartbeat
        self._checks = checks
        self._metrics = metrics
        self._refresh = refresh
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        """Listen, and return the port.

        Raises:
            OSError: The port is taken.
        """
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        alive = self._heartbeat.alive
        return web.Response(text="ok\n" if alive else "stuck\n", status=200 if alive else 503)

    async def _readyz(self, _request: web.Request) -> web.Response:
        results = {name: check() for name, check in self._checks.items()}
        lines = [f"[{'+' if good else '-'}]{name}" for name, good in results.items()]
        return web.Response(
            text="\n".join([*lines, ""]), status=200 if all(results.values()) else 503
        )

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        self._refresh()
        body = generate_latest(self._metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
