"""SIGKILL at random moments: of the agent under an engine, and of engines under the agent."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.harness.installation import read_debug_state
from tests.integration.engine.conftest import Agent, eventually
from tests.integration.engine.test_sharing import DEADLINE_SECONDS, start

REQUESTS = "2000"
KILLS = 10
# After the last connection is closed (DESIGN section 4, "Failure is a normal path").
RELEASE_SECONDS = 1.0


def segments_of(pid: int) -> list[str]:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [line for line in maps.splitlines() if "memfd:" in line]


def last(stats: Path) -> dict[str, int]:
    lines = stats.read_text().splitlines() if stats.exists() else []
    found: dict[str, int] = json.loads(lines[-1]) if lines else {"requests_done": 0}
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_engine_serves_right_bytes_while_its_agent_is_killed_again_and_again(
    agent: Agent, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    kills = 0
    for number in itertools.count():
        # A replay of the whole trace takes some kills' time; the last one ends undisturbed.
        stats = tmp_path / f"{number}.jsonl"
        engine = start(agent, stats, "--requests", REQUESTS, "--blocks", "256")
        try:
            while kills < KILLS and engine.poll() is None:
                time.sleep(dice.uniform(0.05, 1.5))
                agent.process.kill()
                kills += 1
                agent.start_again()
            _, errors = engine.communicate(timeout=DEADLINE_SECONDS)
        finally:
            engine.kill()
        assert engine.returncode == 0, errors
        assert last(stats)["mismatches"] == 0
        assert last(stats)["requests_done"] == int(REQUESTS)
        if kills == KILLS:
            break
    eventually(
        lambda: not read_debug_state(agent.debug_address)["sessions"],
        what="the end of its session",
    )
    partitions = read_debug_state(agent.debug_address)["partitions"]
    assert all(part["sessions"] == 0 for part in partitions)
    mapped = sum(part["mapped"] for part in partitions)
    assert mapped <= 256 << 20, "the budget, which the next engine may have whole"
    assert len(segments_of(agent.process.popen.pid)) <= sum(part["segments"] for part in partitions)


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.long)])
def test_pins_of_a_killed_engine_come_back_within_a_second(
    agent: Agent, tmp_path: Path, kills: int
) -> None:
    dice = random.Random(kills)
    for number in range(kills):
        stats = tmp_path / f"{number}.jsonl"
        engine = start(agent, stats, "--requests", REQUESTS, "--blocks", "256", "--seed", "7")
        try:
            eventually(lambda: last(stats)["requests_done"] > 0, what="it serves")  # noqa: B023
            time.sleep(dice.uniform(0.0, 0.5))
        finally:
            os.kill(engine.pid, signal.SIGKILL)
            engine.communicate(timeout=DEADLINE_SECONDS)
        killed = time.monotonic()
        eventually(
            lambda: not read_debug_state(agent.debug_address)["sessions"], what="the release"
        )
        assert time.monotonic() - killed < RELEASE_SECONDS
    engine = start(
        agent, tmp_path / "last.jsonl", "--requests", "100", "--blocks", "256", "--seed", "7"
    )
    _, errors = engine.communicate(timeout=DEADLINE_SECONDS)
    assert engine.returncode == 0, errors
    assert last(tmp_path / "last.jsonl")["mismatches"] == 0
