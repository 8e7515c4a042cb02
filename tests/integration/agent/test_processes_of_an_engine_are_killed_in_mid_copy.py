"""SIGKILL of an engine's processes, one or all: slots and pins come back, and not before."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.copying import (
    BLOCK_BYTES,
    BLOCKS,
    RANKS,
    EngineProcesses,
    peer,
    places,
)
from tests.integration.agent.wire import Peer

from kvoffload_api.wire.messages import Complete

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

KILLS = 20
SLOTS = 128
BUDGET = SLOTS * RANKS * BLOCK_BYTES
# After the last connection is closed (DESIGN section 4, "Failure is a normal path").
RELEASE_SECONDS = 1.0
Places = set[tuple[int, int]]


class Neighbour:
    """Another engine of the same partition, which stores what it can."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._scheduler = peer(agent.socket)
        self._scheduler.open(key="neighbour", world_size=RANKS)
        self._workers: list[Peer] = []
        for rank in range(RANKS):
            self._workers.append(peer(agent.socket))
            self._workers[-1].join(key="neighbour", rank=rank)
        self._handles = itertools.count(1)

    def grow(self) -> None:
        """Store until the whole budget is in use."""

        def grown() -> bool:
            for worker in self._workers:
                worker.map_some()
            self.store()
            return self._agent.partition()["slots"] == SLOTS and bool(self.store())

        eventually(grown, what="the use of the whole budget", deadline_seconds=60)

    def store(self) -> Places:
        """Store new chunks; return where, nowhere if there was no room."""
        handle = next(self._handles)
        plan = self._scheduler.store(
            handle=handle, blocks=BLOCKS, seed=b"n" + handle.to_bytes(4, "big")
        )
        if plan is None:
            return set()
        for worker in self._workers:
            worker.send(Complete(done=[plan.job], failed=[]))
        eventually(lambda: self.jobs == 0, what="the end of a store")
        return places(plan)

    @property
    def jobs(self) -> int:
        """Return how many of its jobs are in flight."""
        found = [s for s in self._agent.sessions() if s["session"] == self._scheduler.session]
        return int(found[0]["jobs_in_flight"])

    def everywhere(self) -> Places:
        """Store twice as many chunks as there are slots; return where."""
        return set().union(*(self.store() for _ in range(2 * SLOTS // BLOCKS)))

    def close(self) -> None:
        for connection in (self._scheduler, *self._workers):
            connection.close()


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with (
        tempfile.TemporaryDirectory(prefix="kvo") as directory,
        Agent(Path(directory), arguments=["--host-memory", str(BUDGET)]) as running,
    ):
        yield running
        assert running.process.running, running.log()


@pytest.fixture
def neighbour(agent: Agent) -> Iterator[Neighbour]:
    made = Neighbour(agent)
    made.grow()
    yield made
    made.close()
    eventually(lambda: not agent.sessions(), what="the end of this test's sessions")


def session(agent: Agent, engine: EngineProcesses) -> dict[str, Any] | None:
    return next((s for s in agent.sessions() if s["session"] == engine.session), None)


def stays_held(agent: Agent, neighbour: Neighbour, engine: EngineProcesses, held: Places) -> None:
    """Have the neighbour store more than there is: it gets nothing of what is held."""
    others = neighbour.everywhere()
    assert len(others) >= SLOTS - 2 * BLOCKS
    assert not others & held
    found = session(agent, engine)
    assert found is not None
    assert found["jobs_in_flight"] == 1


def comes_back(agent: Agent, engine: EngineProcesses, *, jobs_only: bool = False) -> None:
    """Wait for the end of the job, or of the session, within a second."""
    began = time.monotonic()

    def over() -> bool:
        found = session(agent, engine)
        return found is None or (jobs_only and found["jobs_in_flight"] == 0)

    eventually(over, what="the release")
    assert time.monotonic() - began < RELEASE_SECONDS


@pytest.mark.parametrize("kind", ["load", "store"])
@pytest.mark.parametrize("victim", ["scheduler", "worker", "all"])
def test_what_a_killed_process_copied_comes_back_within_a_second_and_not_before(
    agent: Agent, neighbour: Neighbour, victim: str, kind: str
) -> None:
    for number in range(KILLS):
        engine = EngineProcesses(agent.socket, key=f"{victim}-{kind}-{number}")
        try:
            plan = engine.plan(kind, f"{victim}{kind}{number}".encode())
            engine.copy(kind, plan)
            held = places(plan)
            if victim == "scheduler":
                engine.kill("scheduler")
                stays_held(agent, neighbour, engine, held)
                engine.kill("worker 1")
                stays_held(agent, neighbour, engine, held)
                engine.kill("worker 0")
            elif victim == "worker":
                engine.kill("worker 1")
                stays_held(agent, neighbour, engine, held)
                engine.kill("worker 0")
                comes_back(agent, engine, jobs_only=True)
                engine.kill("scheduler")
            else:
                stays_held(agent, neighbour, engine, held)
                engine.kill(*engine.processes)
            comes_back(agent, engine)
            assert held <= neighbour.everywhere(), "every slot can be used again"
        finally:
            engine.close()
