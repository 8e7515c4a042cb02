"""Serves kubelet's device plugin API, and registers again whenever kubelet began anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from kvoffload_agent.deviceplugin import messages
from kvoffload_agent.deviceplugin.messages import Grant, MessageError

RESOURCE: Final = "kvoffload.io/agent"
ENDPOINT: Final = "kvoffload-agent.sock"
KUBELET_SOCKET: Final = "kubelet.sock"
CONTAINER_DIRECTORY: Final = "/run/kvoffload"
# A device is a ticket, not a thing that can be used up: more than the 500 pods that the largest
# nodes run, each with two containers. A list of them is 30 KB.
DEVICES: Final = 1024
# A restarted kubelet has removed our socket and made its own anew, which two stats tell; pods that
# wait for the device wait no longer than kubelet's own start.
LOOK_SECONDS: Final = 1.0
# A connection to the agent each time; a pod that comes for a dead agent computes everything itself.
AGENT_LOOK_SECONDS: Final = 2.0
# On the same machine kubelet answers within milliseconds; a busy one within seconds.
REGISTER_SECONDS: Final = 10.0
# An agent accepts at once; one that does not for so long serves nobody.
PROBE_SECONDS: Final = 2.0
# Kubelet's calls end at once, and its watch is told to.
STOP_SECONDS: Final = 1.0
_SERVICE: Final = "v1beta1.DevicePlugin"
_REGISTER: Final = "/v1beta1.Registration/Register"

_log = structlog.get_logger(__name__)


class PluginError(Exception):
    """Kubelet's folder cannot be used; for the person who runs the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """``folder``: kubelet's folder of device plugins.

    ``agent``: the agent's socket, as this process sees it; while nobody serves it no pod that wants
    the device is placed on the node. ``host_directory``: its folder on the node.
    """

    folder: Path
    agent: Path
    host_directory: str


class Plugin:
    """One plugin; ``run`` lives until it is cancelled."""

    def __init__(self, options: PluginOptions) -> None:
        self._options = options
        self._names = [f"agent-{number}" for number in range(DEVICES)]
        self._healthy = False
        self._changed = asyncio.Condition()
        self._complaint = ""

    async def run(self) -> None:
        """Serve, register, and begin again whenever kubelet did.

        Raises:
            PluginError: the socket cannot be made.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_agent())
            while True:
                async with self._serving():
                    registered = None
                    while self._own_socket_is_there():
                        # Kubelet makes a socket anew each time it starts.
                        now = identity(self._options.folder / KUBELET_SOCKET)
                        if now is not None and now != registered and await self._register():
                            registered = now
                        await asyncio.sleep(LOOK_SECONDS)
                    _log.info("kubelet began anew", endpoint=ENDPOINT)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        path = self._options.folder / ENDPOINT
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:
            raise PluginError(f"cannot serve at {path}: {error}") from error
        await server.start()
        try:
            yield
        finally:
            await server.stop(STOP_SECONDS)

    def _handlers(self) -> Any:
        return grpc.method_handlers_generic_handler(
            _SERVICE,
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._options_asked),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
                "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
            },
        )

    async def _options_asked(self, _request: bytes, _context: Any) -> bytes:
        return messages.options()

    async def _list_and_watch(self, _request: bytes, _context: Any) -> AsyncIterator[bytes]:
        told: bool | None = None
        while True:
            async with self._changed:
                while self._healthy == told:
                    await self._changed.wait()
                told = self._healthy
            yield messages.devices(self._names, healthy=told)

    async def _allocate(self, request: bytes, context: Any) -> bytes:
        try:
            containers = messages.asked(request)
        except MessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        unknown = {name for names in containers for name in names} - set(self._names)
        if unknown:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"no such devices: {', '.join(sorted(unknown))}"
            )
        grant = Grant(
            host_path=self._options.host_directory,
            container_path=CONTAINER_DIRECTORY,
            variables={"KVOFFLOAD_SOCKET": f"{CONTAINER_DIRECTORY}/{self._options.agent.name}"},
        )
        return messages.granted([grant] * len(containers))

    async def _register(self) -> bool:
        """Tell kubelet where we serve; whether it took note."""
        path = self._options.folder / KUBELET_SOCKET
        try:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                register = channel.unary_unary(_REGISTER)
                await register(
                    messages.registration(endpoint=ENDPOINT, resource=RESOURCE),
                    timeout=REGISTER_SECONDS,
                )
        except grpc.aio.AioRpcError as error:
            if (complaint := str(error.details())) != self._complaint:  # not once a second
                _log.warning("kubelet did not register the device plugin", error=complaint)
                self._complaint = complaint
            return False
        self._complaint = ""
        _log.info("registered with kubelet", resource=RESOURCE, endpoint=ENDPOINT)
        return True

    def _own_socket_is_there(self) -> bool:
        return identity(self._options.folder / ENDPOINT) is not None

    async def _watch_agent(self) -> None:
        """Follow whether the agent serves; while it does not, no new pod comes here for it."""
        while True:
            healthy = await serves(self._options.agent)
            if healthy != self._healthy:
                _log.info("the agent's state changed", serves=healthy)
                async with self._changed:
                    self._healthy = healthy
                    self._changed.notify_all()
            await asyncio.sleep(AGENT_LOOK_SECONDS)


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return what tells a socket's file from a later one of the same name; None: there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


async def serves(path: Path) -> bool:
    """Whether somebody accepts connections at a Unix socket."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_unix_connection(str(path))
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def run_plugin(options: PluginOptions, *, until: Callable[[], Any]) -> None:
    """Run a plugin until an awaitable ends.

    Raises:
        PluginError: kubelet's folder cannot be used.
    """
    if not options.folder.is_dir():
        raise PluginError(f"{options.folder} is no folder: is kubelet's folder another one?")
    work = asyncio.ensure_future(Plugin(options).run())
    stop = asyncio.ensure_future(until())
    try:
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.cancel()
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
