"""Every recorded case of the real scheduler replays with equal decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracle.better import BETTER
from tests.oracle.cases import CASES, in_slice, load, outcome

PATHS = sorted(CASES.rglob("*.json"))


def test_all_recorded_cases_are_here() -> None:
    assert len(PATHS) == 238
    assert sum(in_slice(load(path)) for path in PATHS) == 50


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_decisions_equal_the_recorded_ones(path: Path) -> None:
    assert outcome(load(path)) == ""


@pytest.mark.parametrize(
    "name", ["hand-load-cap-17", "hand-tier-retry", "hand-evict-order-arc", "sched-0002"]
)
def test_the_replay_notices_a_changed_decision(name: str) -> None:
    [path] = [path for path in PATHS if path.stem == name]
    case = load(path)
    changed = 0
    for op in case["ops"]:
        expect = op["expect"]
        if expect.get("tokens"):
            expect["tokens"] += 1
            changed += 1
    assert changed
    assert outcome(case) != ""


def test_only_cases_that_record_a_defect_have_another_outcome() -> None:
    assert len(BETTER) == 3
