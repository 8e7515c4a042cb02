"""A real memory cgroup gets short while a real agent and its engine run: segments go in time."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.cgroups import Group
from tests.integration.agent.agent import WAIT_SECONDS, Agent, eventually
from tests.integration.agent.hungry import MIB, running_in
from tests.integration.agent.wire import Closed, Peer

from kvoffload_api.wire.messages import Complete, FromEngine, Map, Mapped, Unmap, Unmapped

pytestmark = pytest.mark.cgroup

LIMIT = 512 * MIB
# Some segments, each of which may take as long as anything else that is waited for.
FILL_SECONDS = 3 * WAIT_SECONDS
# 100 MiB/s in small steps, touched: a neighbour that loads a model, not one that outruns a disk.
GROWING = """
import sys, time
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(b"x" * (2 << 20))
    time.sleep(0.02)
print("grown", flush=True)
time.sleep(600)
"""
# Files of a v2 group by which the kernel tells of reclaim and of stalls.
TOLD_BY_V2 = ("memory.events", "memory.pressure")


@pytest.fixture
def outer() -> Iterator[Group]:
    made = Group(None)
    yield made
    made.remove()


@pytest.fixture
def group(outer: Group) -> Iterator[Group]:
    made = Group(LIMIT, parent=outer)
    yield made
    made.remove()


@pytest.fixture
def agent(group: Group) -> Iterator[Agent]:
    with running_in(group) as made:
        yield made


class Obedient:
    """An engine with rows of 1 MiB whose worker gives up, descriptor and all, what it is asked to.

    It holds descriptors only, no mapping; either keeps the memory.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler = Peer(agent.socket, block_bytes=MIB)
        self._scheduler.open()
        self._worker = Peer(agent.socket, block_bytes=MIB)
        self._worker.join()
        self._sending = threading.Lock()
        self._handle = 0
        self._held: dict[int, int] = {}
        self._thread = threading.Thread(target=self._obey, daemon=True)
        self._thread.start()

    def store(self) -> None:
        """Store some chunks, and complete what is to be stored."""
        self._handle += 1
        plan = self._scheduler.store(
            handle=self._handle, blocks=16, seed=self._handle.to_bytes(4, "big")
        )
        if plan is not None:
            self._send(Complete(done=[plan.job], failed=[]))

    def fill(self) -> None:
        """Store until the agent has asked for more memory and got none, however long that takes.

        Not until it has not grown for a while: how long a segment takes depends on the machine.
        """

        def refused() -> bool:
            self.store()
            return memory(self._agent)["refusal"] is not None

        eventually(refused, what="the end of growth", deadline_seconds=FILL_SECONDS)

    def close(self) -> None:
        self._scheduler.close()
        self._worker.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()
        for fd in self._held.values():
            os.close(fd)
        self._worker.sock.close()

    def _send(self, message: FromEngine) -> None:
        with self._sending:
            self._worker.send(message)

    def _obey(self) -> None:
        self._worker.sock.settimeout(None)
        with contextlib.suppress(Closed, ConnectionError):
            while True:
                message = self._worker.receive()
                if isinstance(message, Map):
                    fresh = [info.segment for info in message.segments]
                    self._held.update(zip(fresh, self._worker.fds, strict=True))
                    self._worker.fds = []
                    self._send(Mapped(segments=fresh))
                elif isinstance(message, Unmap):
                    for segment in message.segments:
                        os.close(self._held.pop(segment))
                    self._send(Unmapped(segments=message.segments))


@pytest.fixture
def engine(agent: Agent) -> Iterator[Obedient]:
    made = Obedient(agent)
    yield made
    made.close()


@contextlib.contextmanager
def growing(group: Group, *, mib: int) -> Iterator[None]:
    """Let another process of the group take so many MiB, and end it with the block."""
    process = subprocess.Popen(
        [*group.enter(), sys.executable, "-c", GROWING, str(mib // 2)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "grown\n", "the neighbour was killed"
        yield
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def memory(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = agent.state()["memory"]
    return found


def test_a_neighbour_that_grows_after_the_arena_gets_its_memory_and_nobody_is_killed(
    group: Group, agent: Agent, engine: Obedient
) -> None:
    engine.fill()
    before = memory(agent)["mapped"]
    assert before > 200 * MIB
    with growing(group, mib=256):
        found = memory(agent)
        assert found["ceiling"] < before
        assert found["mapped"] <= before - 128 * MIB
        assert found["mapped"] <= found["requested"]
    assert group.oom_kills == 0
    assert agent.process.running
    assert "memory is short, segments are given back" in agent.log()
    for name in ("memory.usage_in_bytes",) if group.version == 1 else TOLD_BY_V2:
        assert f"{group.path}/{name}" in agent.log(), "the kernel tells by itself"
    with urllib.request.urlopen(f"http://{agent.http}/metrics", timeout=10) as answer:
        assert 'kvoffload_pressure_steps_total{step="shrink"}' in answer.read().decode()


@pytest.mark.long
def test_memory_that_a_neighbour_leaves_is_used_again_after_a_while(
    group: Group, agent: Agent, engine: Obedient
) -> None:
    engine.fill()
    with growing(group, mib=256):
        low = memory(agent)["ceiling"]

    def grown() -> bool:
        engine.store()
        return bool(memory(agent)["mapped"] > low)

    # 15 s of calm, then a growth that was refused is asked for again within 5 s.
    eventually(grown, what="growth after the neighbour left", deadline_seconds=60)
    assert group.oom_kills == 0


def test_a_limit_that_is_lowered_on_an_ancestor_only_is_followed(
    outer: Group, group: Group, agent: Agent, engine: Obedient
) -> None:
    engine.fill()
    before = memory(agent)["mapped"]
    # Just above what is used, so that the kernel takes it without reclaim.
    outer.limit(outer.usage + 8 * MIB)
    eventually(lambda: memory(agent)["mapped"] < before, what="the return of a segment")
    eventually(lambda: outer.usage < before, what="the return of its memory")
    found = memory(agent)
    assert "hierarchical" in found["limited_by"] or outer.path.name in found["limited_by"]
    assert outer.oom_kills == group.oom_kills == 0
