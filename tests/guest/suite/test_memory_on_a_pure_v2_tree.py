"""What only a cgroup v2 tree can show; run by ``python -m tests.guest``, not on the host."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.harness.cgroups import ROOT, Group, version
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.hungry import MIB, POLICY, Hungry

pytestmark = pytest.mark.cgroup
LIMIT = 512 * MIB
# The agent's own margin below a limit is 64 MiB (``guard.MIN_MARGIN_BYTES``).
MARGIN = 64 * MIB

StartIn = Callable[[Group], tuple[Agent, Hungry]]


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    """Hold groups, outermost first; removed last first."""
    assert version() == 2
    made: list[Group] = []
    yield made
    for group in reversed(made):
        group.remove()


@pytest.fixture
def start_in(groups: list[Group]) -> Iterator[StartIn]:
    with ExitStack() as stack:

        def start(group: Group) -> tuple[Agent, Hungry]:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvo")))
            agent = Agent(folder, wrapper=group.enter())
            agent.write("default.yaml", POLICY)
            stack.enter_context(agent)
            engine = Hungry(agent)
            stack.callback(engine.close)
            return agent, engine

        yield start


def test_no_v1_hierarchy_is_mounted_and_pressure_is_reported() -> None:
    assert " cgroup " not in Path("/proc/self/mountinfo").read_text()
    assert "memory" in (ROOT / "cgroup.controllers").read_text().split()
    assert Path("/proc/pressure/memory").read_text().startswith("some avg10=")


def test_the_kernel_kills_who_fills_shared_memory_past_memory_max(groups: list[Group]) -> None:
    groups.append(Group(64 * MIB))
    # Close to the limit: the kernel sleeps up to 2 s for each 256 KiB above memory.high.
    (groups[0].path / "memory.high").write_text(str(62 * MIB))
    code = (
        "import os, mmap\n"
        "fd = os.memfd_create('x'); os.ftruncate(fd, 128 << 20); m = mmap.mmap(fd, 128 << 20)\n"
        "m.madvise(23)  # MADV_POPULATE_WRITE\n"
    )
    done = subprocess.run(
        [*groups[0].enter(), sys.executable, "-c", code], timeout=250, check=False
    )
    assert done.returncode == -9
    assert groups[0].oom_kills == 1
    assert groups[0].figure("memory.events", "high") > 0
    assert groups[0].figure("memory.events", "max") > 0
    pressure = (groups[0].path / "memory.pressure").read_text()
    assert int(pressure.splitlines()[0].rpartition("total=")[2]) > 0


def test_memory_high_below_memory_max_is_the_limit_and_is_never_reached(
    groups: list[Group], start_in: StartIn
) -> None:
    groups.append(Group(LIMIT))
    high = 320 * MIB
    (groups[0].path / "memory.high").write_text(str(high))
    agent, engine = start_in(groups[0])
    engine.fill()
    memory = agent.state()["memory"]
    assert 64 * MIB < memory["mapped"] < high - MARGIN
    assert "memory.high of cgroup" in memory["refusal"]["limited_by"]
    assert groups[0].usage < high
    assert groups[0].figure("memory.events", "high") == 0, "the agent was never throttled"
    assert groups[0].oom_kills == 0


def test_a_limit_on_an_ancestor_alone_holds(groups: list[Group], start_in: StartIn) -> None:
    groups.append(Group(LIMIT))
    groups.append(Group(None, parent=groups[0]))
    groups.append(Group(None, parent=groups[1]))
    agent, engine = start_in(groups[2])
    engine.fill()
    memory = agent.state()["memory"]
    assert 200 * MIB < memory["mapped"] < LIMIT - MARGIN
    # The agent names groups as they are below the hierarchy's root.
    assert f"cgroup /{groups[0].path.name} " in memory["refusal"]["limited_by"]
    assert groups[0].oom_kills == 0
    assert groups[0].figure("memory.events", "max") == 0


def test_a_limit_that_is_lowered_while_the_agent_runs_stops_its_growth(
    groups: list[Group], start_in: StartIn
) -> None:
    groups.append(Group(LIMIT))
    agent, engine = start_in(groups[0])

    def grown() -> bool:
        engine.fill(until_settled_seconds=0)
        return bool(agent.state()["memory"]["mapped"])

    eventually(grown, what="the first segment")
    lowered = groups[0].usage + MARGIN + 16 * MIB
    assert lowered < LIMIT - 64 * MIB, "there was room for more before"
    groups[0].limit(lowered)
    engine.fill()
    memory = agent.state()["memory"]
    assert groups[0].usage < lowered - MARGIN // 2
    assert f"cgroup /{groups[0].path.name} " in memory["refusal"]["limited_by"]
    assert groups[0].oom_kills == 0
    assert agent.process.running
