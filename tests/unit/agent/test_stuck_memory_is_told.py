"""What engines keep after they were told to leave is counted once and told to who can end it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvoffload_agent.config.status import Observation, conditions
from kvoffload_agent.server.session import Session
from kvoffload_agent.server.stuck import STUCK_SECONDS, Stuck, stuck_memory

LATE = 1000.0 + STUCK_SECONDS


def session(pod: str, held: dict[int, int], *, ended_at: float | None) -> Session:
    workers = {0: SimpleNamespace(held=held)}
    identity = SimpleNamespace(namespace="team-a", pod=pod)
    return cast("Session", SimpleNamespace(ended_at=ended_at, workers=workers, identity=identity))


@pytest.mark.parametrize("ended_at", [None, LATE - STUCK_SECONDS + 0.1])
def test_nothing_is_stuck_while_an_engine_may_still_leave(ended_at: float | None) -> None:
    found = stuck_memory([session("a", {1: 10}, ended_at=ended_at)], now=LATE)
    assert found == Stuck(bytes=0, pods=())
    assert found.text == ""


def test_a_segment_that_two_engines_keep_counts_once() -> None:
    sessions = [
        session("b", {1: 10, 2: 20}, ended_at=1000.0),
        session("a", {2: 20, 3: 30}, ended_at=1000.0),
        session("gave-all-back", {}, ended_at=1000.0),
    ]
    assert stuck_memory(sessions, now=LATE) == Stuck(bytes=60, pods=("team-a/a", "team-a/b"))


def test_the_node_is_degraded_and_the_pod_is_named() -> None:
    text = Stuck(bytes=60, pods=("team-a/a",)).text
    seen = Observation(
        boot_id="1", version="0", requested=0, mapped=0, populated=0, limit=None, headroom=0,
        limited_by="", refusal="", engines=(), stuck=text,
    )  # fmt: skip
    source: Any = SimpleNamespace(rejected="", generation=1)
    found = {item["type"]: item for item in conditions(source, seen)}
    assert found["Degraded"]["status"] == "True"
    assert found["Degraded"]["reason"] == "MemoryStuck"
    assert "team-a/a" in found["Degraded"]["message"]
    assert "60 bytes" in found["Degraded"]["message"]
    assert found["Ready"]["status"] == "True"
