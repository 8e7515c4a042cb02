"""SIGKILL of the agent under engines that load and store: nothing is left, and no byte is wrong."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.probe import KINDS, CopyProbe
from tests.harness.cgroups import Group
from tests.harness.processes import Process, all_stopped
from tests.integration.agent.agent import Agent, eventually

pytestmark = [pytest.mark.long, pytest.mark.cgroup]

MIB = 1 << 20
BUDGET = 256 * MIB
# More than the budget, so that chunks are loaded and evicted all the time.
REQUESTS = "18"
KILLS = 50
# Of these, some wait for nothing after their random moment; the others for a copy of this kind.
MOMENTS = [*["load"] * 20, *["store"] * 20, *["any"] * 10]
IN_FLIGHT = 30
# A smaller copy would have ended before the signal is sent.
LARGE_BYTES = 4 * MIB
# The kernel sums up a group's counters from those of its processors only now and then.
STALE_BYTES = MIB
# Four times what the slowest of many restarts was seen to take on a busy machine with two cores.
WAIT_SECONDS = 60.0


class ServingEngine:
    """A process of the reference engine that serves a trace for ever."""

    def __init__(self, agent: Agent, folder: Path, *, number: int) -> None:
        self._stats = folder / f"stats-{number}.jsonl"
        self.probe = CopyProbe(folder / f"copies-{number}")
        token = folder / "token"
        token.write_text("token-a")
        self.process = Process(
            [
                sys.executable, "-m", "tests.engine", "--socket", str(agent.socket),
                "--name", f"engine {number}", "--token-file", str(token), "--need-agent",
                "--stats-file", str(self._stats), "--copies-file", str(folder / f"copies-{number}"),
                "--requests", REQUESTS, "--shard", f"{number}/2", "--repeat", "--blocks", "256",
                "--layers", "2", "--layer-kib", "128", "--hook-deadline-ms", "100",
                "--step-ms", "10",
            ],
            name=f"engine {number}",
            log=folder / f"engine-{number}.log",
        )  # fmt: skip

    def stats(self) -> dict[str, int]:
        """Return its counters as of its last whole line."""
        text = self._stats.read_text() if self._stats.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        found: dict[str, int] = json.loads(whole[-1]) if whole else {"requests_done": 0}
        return found

    def mapped_segments(self) -> list[str]:
        """Return the lines of its mappings of the agent's memory."""
        maps = Path(f"/proc/{self.process.popen.pid}/maps").read_text()
        return [line for line in maps.splitlines() if "memfd:" in line]


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(None)
    yield made
    made.remove()


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        yield Path(directory)


@pytest.fixture
def agent(group: Group, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Run the agent alone in a memory cgroup, with a folder of its own for what is temporary."""
    (folder / "agent").mkdir()
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))
    with Agent(
        folder / "agent", arguments=["--host-memory", str(BUDGET)], wrapper=group.enter()
    ) as made:
        yield made


@pytest.fixture
def engines(agent: Agent, folder: Path) -> Iterator[list[ServingEngine]]:
    processes: list[Process] = []
    with all_stopped(processes):
        made = []
        for number in range(2):
            made.append(ServingEngine(agent, folder, number=number))
            processes.append(made[-1].process)
        yield made


def copies_in_flight(engines: list[ServingEngine]) -> set[tuple[int, str, int]]:
    return {
        (number, kind, copy)
        for number, engine in enumerate(engines)
        for kind in KINDS
        if (copy := engine.probe.in_flight(kind))
    }


def wait_for_copy(engines: list[ServingEngine], kind: str) -> None:
    """Return while a copy of this kind is in flight: no sleep, it takes a millisecond."""
    until = time.monotonic() + WAIT_SECONDS
    while not any(engine.probe.in_flight(kind, at_least=LARGE_BYTES) for engine in engines):
        assert time.monotonic() < until, f"no {kind} began"


def files_of(agent: Agent) -> set[str]:
    """Return what there is in the agent's folders and where a leak of shared memory would be."""
    folders = (agent.folder, agent.folder.parent / "tmp")
    found = {str(path) for folder in folders for path in folder.rglob("*")}
    return found | {str(path) for path in Path("/dev/shm").glob("*kvoffload*")}


def kill(agent: Agent, engines: list[ServingEngine], moment: str) -> set[tuple[int, str, int]]:
    """Kill the agent; return the copies that were in flight before and are still after it."""
    if moment != "any":
        wait_for_copy(engines, moment)
    before = copies_in_flight(engines)
    os.kill(agent.process.popen.pid, signal.SIGKILL)
    caught = before & copies_in_flight(engines)
    agent.process.kill()
    return caught


def nothing_is_left(agent: Agent, group: Group, engines: list[ServingEngine]) -> None:
    """Wait until the engines have noticed; then no process and no byte may be left."""
    assert (group.path / "cgroup.procs").read_text() == ""
    eventually(
        lambda: not any(engine.mapped_segments() for engine in engines),
        what="the engines unmap every segment",
    )
    eventually(
        lambda: group.figure("memory.stat", "shmem") < STALE_BYTES, what="the return of the memory"
    )


def go_on_without_an_agent(engines: list[ServingEngine]) -> None:
    """Wait until each engine has served more requests than it had."""
    done = [engine.stats()["requests_done"] for engine in engines]
    for engine, before in zip(engines, done, strict=True):
        eventually(
            lambda: engine.stats()["requests_done"] > before,  # noqa: B023 - called in this turn
            what="engines compute without an agent",
            deadline_seconds=WAIT_SECONDS,
        )


def load_and_store_again(agent: Agent, engines: list[ServingEngine]) -> None:
    """Wait until each engine is connected to this agent and has moved bytes both ways."""

    def served() -> bool:
        sessions = agent.sessions()
        return len(sessions) == len(engines) and all(
            session["tokens_stored"] and session["tokens_loaded"] for session in sessions
        )

    eventually(served, what="engines load and store again", deadline_seconds=WAIT_SECONDS)


@pytest.mark.timeout(1800)
def test_after_each_of_fifty_kills_the_budget_is_free_and_every_byte_is_right(
    agent: Agent, group: Group, engines: list[ServingEngine]
) -> None:
    dice = random.Random(5)
    moments = dice.sample(MOMENTS, k=KILLS)
    files = files_of(agent)
    caught: list[set[tuple[int, str, int]]] = []
    for moment in moments:
        load_and_store_again(agent, engines)
        memory = agent.state()["memory"]
        assert 0 < memory["mapped"] <= memory["requested"] <= BUDGET
        time.sleep(dice.uniform(0.0, 1.0))
        caught.append(kill(agent, engines, moment))
        nothing_is_left(agent, group, engines)
        go_on_without_an_agent(engines)
        agent.start()
        assert files_of(agent) == files
        assert [engine.stats()["mismatches"] for engine in engines] == [0, 0]
    load_and_store_again(agent, engines)
    eventually(
        lambda: agent.state()["memory"]["mapped"] > BUDGET // 2,
        what="the use of the budget by the last agent",
        deadline_seconds=WAIT_SECONDS,
    )
    for engine in engines:
        assert engine.process.running, engine.process.last_lines()
        engine.process.stop()
    print(f"copies in flight at {sum(map(bool, caught))} of {KILLS} kills")
    assert sum(map(bool, caught)) >= IN_FLIGHT
    for kind in KINDS:
        assert any(copy[1] == kind for copies in caught for copy in copies)
    stats = [engine.stats() for engine in engines]
    assert [line["mismatches"] for line in stats] == [0, 0]
    assert sum(line["failed_loads"] for line in stats) > 0, "a load that was caught is recomputed"
    assert min(line["bytes_verified"] for line in stats) > 0
    eventually(lambda: not agent.sessions(), what="the end of the sessions")
