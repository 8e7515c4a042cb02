"""The device plugin against kubelet's side of the API, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from kvoffload_agent.deviceplugin import plugin as module
from kvoffload_agent.deviceplugin.plugin import (
    DEVICES,
    Plugin,
    PluginError,
    PluginOptions,
    run_plugin,
)

from .kubelet import Kubelet, allocation, fields, text


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(module, "AGENT_LOOK_SECONDS", 0.02)


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvo-") as name:  # a socket's path is at most 107 bytes
        yield Path(name)


@pytest.fixture
async def kubelet(home: Path) -> AsyncIterator[Kubelet]:
    (home / "plugins").mkdir()
    async with Kubelet(home / "plugins") as running:
        yield running


def options(home: Path) -> PluginOptions:
    return PluginOptions(
        folder=home / "plugins", agent=home / "agent.sock", host_directory="/srv/kvoffload"
    )


@pytest.fixture
async def plugin(home: Path, kubelet: Kubelet) -> AsyncIterator[None]:
    task = asyncio.create_task(Plugin(options(home)).run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def agent(home: Path) -> AsyncIterator[None]:
    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_unix_server(accept, home / "agent.sock")
    try:
        yield
    finally:
        server.close()
        (home / "agent.sock").unlink(missing_ok=True)


@pytest.mark.usefixtures("plugin")
async def test_the_plugin_registers_its_resource_and_socket(kubelet: Kubelet) -> None:
    assert await kubelet.registration() == {
        1: b"v1beta1",
        2: b"kvoffload-agent.sock",
        3: b"kvoffload.io/agent",
    }
    assert await kubelet.call("GetDevicePluginOptions") == b""


@pytest.mark.usefixtures("plugin")
async def test_a_restarted_kubelet_is_registered_with_again(kubelet: Kubelet) -> None:
    await kubelet.registration()

    for _ in range(2):
        await kubelet.stop()
        await kubelet.start()

        assert (await kubelet.registration())[3] == b"kvoffload.io/agent"
        assert await kubelet.call("GetDevicePluginOptions") == b""


async def test_a_restarted_plugin_registers_again_over_what_a_killed_one_left(
    home: Path, kubelet: Kubelet
) -> None:
    for _ in range(2):
        task = asyncio.create_task(Plugin(options(home)).run())
        await kubelet.registration()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        (home / "plugins/kvoffload-agent.sock").touch()


@pytest.mark.usefixtures("plugin")
async def test_registration_is_tried_until_kubelet_takes_it(kubelet: Kubelet) -> None:
    await kubelet.registration()
    kubelet.refuse = True
    await kubelet.stop()
    await kubelet.start()
    await asyncio.sleep(0.2)
    assert kubelet.registered.empty()

    kubelet.refuse = False

    assert (await kubelet.registration())[3] == b"kvoffload.io/agent"


@pytest.mark.usefixtures("plugin")
async def test_devices_are_healthy_while_the_agent_serves(home: Path, kubelet: Kubelet) -> None:
    await kubelet.registration()
    [without] = await kubelet.healths(1)
    assert len(without) == DEVICES
    assert set(without.values()) == {"Unhealthy"}

    watching = asyncio.create_task(kubelet.healths(3))
    await asyncio.sleep(0.1)
    async with agent(home):
        await asyncio.sleep(0.3)
    first, second, third = await watching

    assert set(first.values()) == {"Unhealthy"}
    assert set(second.values()) == {"Healthy"}
    assert set(third.values()) == {"Unhealthy"}
    assert set(second) == set(without)


@pytest.mark.usefixtures("plugin")
async def test_each_container_gets_the_folder_read_only_and_the_sockets_path(
    kubelet: Kubelet,
) -> None:
    await kubelet.registration()

    answer = await kubelet.call("Allocate", allocation(["agent-0"], ["agent-7", "agent-8"]))

    containers = [fields(bytes(content)) for _, content in fields(answer)]
    assert len(containers) == 2
    for container in containers:
        [env] = [dict(fields(bytes(content))) for number, content in container if number == 1]
        [mount] = [dict(fields(bytes(content))) for number, content in container if number == 2]
        assert (text(env[1]), text(env[2])) == ("KVOFFLOAD_SOCKET", "/run/kvoffload/agent.sock")
        assert mount == {1: b"/run/kvoffload", 2: b"/srv/kvoffload", 3: 1}


@pytest.mark.parametrize(
    "request_", [allocation(["gpu-0"]), b"\xff\xff\xff", allocation(["agent-1024"])]
)
@pytest.mark.usefixtures("plugin")
async def test_an_allocation_of_what_was_not_offered_is_refused(
    kubelet: Kubelet, request_: bytes
) -> None:
    await kubelet.registration()

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await kubelet.call("Allocate", request_)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_without_kubelets_folder_the_message_names_it(home: Path) -> None:
    with pytest.raises(PluginError, match="plugins is no folder"):
        await run_plugin(options(home), until=asyncio.Event().wait)


async def test_a_folder_that_cannot_be_written_is_told(home: Path) -> None:
    (home / "plugins/kvoffload-agent.sock").mkdir(parents=True)

    with pytest.raises(PluginError, match="cannot serve at"):
        await run_plugin(options(home), until=asyncio.Event().wait)


async def test_the_plugin_ends_when_asked_to(home: Path, kubelet: Kubelet) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(run_plugin(options(home), until=stop.wait))
    await kubelet.registration()

    stop.set()

    async with asyncio.timeout(10):
        await running
