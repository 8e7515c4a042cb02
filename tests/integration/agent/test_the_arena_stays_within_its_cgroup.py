"""A real memory cgroup around a real agent: nothing is ever OOM-killed.

v1 or v2, whichever the machine has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cgroups import Group
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.hungry import MIB, Hungry, running_in

pytestmark = pytest.mark.cgroup

LIMIT = 512 * MIB


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group(LIMIT)
    yield made
    made.remove()


@pytest.fixture
def confined(group: Group) -> Iterator[Agent]:
    with running_in(group) as agent:
        yield agent


@pytest.fixture
def engine(confined: Agent) -> Iterator[Hungry]:
    made = Hungry(confined)
    yield made
    made.close()


def test_a_policy_of_2_gib_in_512_mib_maps_what_fits_and_says_why(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    memory = confined.state()["memory"]
    assert memory["requested"] == 2 << 30
    assert 200 * MIB < memory["mapped"] < LIMIT
    assert memory["populated"] == memory["mapped"]
    assert group.usage < LIMIT - 32 * MIB
    assert memory["refusal"] is not None
    assert "memory limit of cgroup" in memory["refusal"]["limited_by"]
    assert "bytes" in memory["refusal"]["reason"]
    assert group.oom_kills == 0
    assert confined.process.running


def test_page_cache_that_fills_the_cgroup_does_not_make_the_guard_refuse(
    group: Group, confined: Agent, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(450):
            file.write(bytes(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    subprocess.run([*group.enter(), "cat", str(big)], stdout=subprocess.DEVNULL, check=True)
    if group.usage < LIMIT * 3 // 4:
        pytest.fail(f"the page cache did not fill: {group.usage} bytes in use")
    # Not before: an engine that does not answer for half a minute is taken for dead.
    with contextlib.closing(Hungry(confined)) as engine:
        engine.fill()
        assert confined.state()["memory"]["mapped"] > 150 * MIB
    assert group.oom_kills == 0


def test_a_neighbour_that_grows_in_the_same_cgroup_is_left_its_share(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    code = "import time; kept = b'x' * (200 << 20); print('ready', flush=True); time.sleep(600)"
    neighbour = subprocess.Popen(
        [*group.enter(), sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "ready\n"
        engine.fill()
        assert 0 < confined.state()["memory"]["mapped"] < LIMIT - 264 * MIB
        assert neighbour.poll() is None
        assert group.oom_kills == 0
    finally:
        neighbour.kill()
        neighbour.communicate()


def test_a_limit_that_is_raised_while_the_agent_runs_is_used(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    before = confined.state()["memory"]["mapped"]
    group.limit(LIMIT + 256 * MIB)

    def grown() -> bool:
        engine.fill(until_settled_seconds=0.5)
        return bool(confined.state()["memory"]["mapped"] > before)

    eventually(grown, what="growth under the new limit")
    assert group.oom_kills == 0


def test_sigkill_leaves_no_memory_and_no_file(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    held = group.usage
    assert held > 200 * MIB
    confined.process.kill()
    engine.close()
    with contextlib.suppress(FileNotFoundError):
        assert not list(Path("/dev/shm").glob("kvoffload*"))
    eventually(lambda: group.usage < 64 * MIB, what="the return of the memory")
    confined.start()
    assert confined.state()["memory"]["mapped"] == 0
