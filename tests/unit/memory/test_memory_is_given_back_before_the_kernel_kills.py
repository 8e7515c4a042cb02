"""The pressure decision: a ceiling that falls at once and rises after a calm while."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.memory.guard import margin
from kvoffload_agent.memory.pressure import (
    CALM_SECONDS,
    STALL_SECONDS,
    Grow,
    Hold,
    Shrink,
    State,
    Step,
    decide,
)
from kvoffload_agent.memory.snapshot import GIB, MIB, Level, Snapshot

LIMIT = 2 * GIB
KEEP = margin(LIMIT)
BUDGET = 2 * GIB


def snapshot(*, free: int, inactive_file: int = 0, problem: str = "") -> Snapshot:
    """One group of 2 GiB with ``free`` bytes until its limit, page cache not counted as used."""
    level = Level(
        path="/pod",
        version=2,
        limit=None if problem else LIMIT,
        usage=LIMIT - free + inactive_file,
        inactive_file=inactive_file,
        problem=problem,
    )
    return Snapshot(levels=(level,), available=64 * GIB, total=64 * GIB)


def look(
    state: State, *, free: int, now: float = 0.0, populated: int = GIB, stalled: bool = False
) -> tuple[Step, State]:
    return decide(
        snapshot(free=free), state, now=now, populated=populated, budget=BUDGET, stalled=stalled
    )


def test_a_node_with_room_is_left_alone() -> None:
    assert look(State(), free=GIB) == (Hold(), State())


def test_growth_up_to_the_guards_margin_is_not_taken_back() -> None:
    assert look(State(), free=KEEP)[0] == Hold()
    assert look(State(), free=KEEP - KEEP // 4)[0] == Hold()


def test_a_quarter_of_the_margin_gone_gives_back_up_to_twice_the_margin() -> None:
    step, state = look(State(), free=KEEP - KEEP // 4 - 1)
    assert isinstance(step, Shrink)
    assert step.bytes == KEEP + KEEP // 4 + 1
    assert step.ceiling == state.ceiling == GIB - step.bytes
    assert "/pod" in step.limited_by
    assert step.slack == KEEP - KEEP // 4 - 1


def test_inactive_page_cache_at_the_limit_evicts_nothing() -> None:
    found = snapshot(free=GIB, inactive_file=GIB)
    assert found.levels[0].usage == LIMIT
    assert decide(found, State(), now=0, populated=GIB, budget=BUDGET)[0] == Hold()


def test_a_limit_that_is_unreadable_evicts_nothing_and_keeps_the_ceiling() -> None:
    found = snapshot(free=0, problem="memory.max is unreadable")
    held = State(ceiling=GIB, calm_since=0.0)
    step, state = decide(found, held, now=9999, populated=GIB, budget=BUDGET)
    assert step == Hold()
    assert state.ceiling == GIB


def test_nothing_is_given_back_twice_while_engines_unmap() -> None:
    first, state = look(State(), free=0)
    assert isinstance(first, Shrink)
    for returned in range(0, first.bytes, 16 * MIB):
        step, state = look(state, free=returned, populated=GIB - returned)
        assert step == Hold()
        assert state.ceiling == first.ceiling


def test_a_neighbour_that_goes_on_growing_lowers_the_ceiling_further() -> None:
    first, state = look(State(), free=0)
    assert isinstance(first, Shrink)
    second, state = look(state, free=0, populated=GIB - first.bytes)
    assert isinstance(second, Shrink)
    assert state.ceiling == GIB - first.bytes - second.bytes


def test_never_more_is_given_back_than_there_is() -> None:
    step, state = look(State(), free=-GIB, populated=MIB)
    assert isinstance(step, Shrink)
    assert (step.bytes, state.ceiling) == (MIB, 0)
    assert look(State(), free=-GIB, populated=0)[0] == Hold()


def test_growth_is_allowed_again_only_after_a_calm_while() -> None:
    _, state = look(State(), free=0)
    ceiling = state.ceiling
    assert ceiling is not None
    step, state = look(state, free=GIB, now=10.0, populated=ceiling)
    assert step == Hold()
    step, state = look(state, free=GIB, now=10.0 + CALM_SECONDS - 0.1, populated=ceiling)
    assert step == Hold()
    step, state = look(state, free=GIB, now=10.0 + CALM_SECONDS, populated=ceiling)
    assert isinstance(step, Grow)
    assert step.ceiling == state.ceiling == ceiling + (GIB - KEEP) // 2


def test_a_short_moment_begins_the_calm_anew() -> None:
    _, state = look(State(), free=0)
    _, state = look(state, free=GIB, now=10.0, populated=MIB)
    _, state = look(state, free=2 * KEEP - 1, now=20.0, populated=MIB)
    assert state.calm_since is None
    assert look(state, free=GIB, now=10.0 + CALM_SECONDS, populated=MIB)[0] == Hold()


def test_a_ceiling_above_the_budget_is_no_ceiling() -> None:
    state = State(ceiling=BUDGET - MIB, calm_since=0.0)
    step, state = look(state, free=GIB, now=CALM_SECONDS, populated=BUDGET - MIB)
    assert step == Grow(ceiling=None, slack=GIB)
    assert state.ceiling is None


def test_a_stall_below_every_visible_limit_gives_a_part_back_and_then_waits() -> None:
    step, state = look(State(), free=GIB, now=5.0, stalled=True)
    assert isinstance(step, Shrink)
    assert step.bytes == max(KEEP, GIB // 16)
    again = look(state, free=GIB, now=5.0 + STALL_SECONDS - 0.1, stalled=True, populated=GIB // 2)
    assert again[0] == Hold()
    later = look(state, free=GIB, now=5.0 + STALL_SECONDS, stalled=True, populated=GIB // 2)
    assert isinstance(later[0], Shrink)


def test_what_policy_keeps_for_others_on_the_node_is_given_back() -> None:
    node = Snapshot(levels=(), available=3 * GIB, total=64 * GIB)
    assert decide(node, State(), now=0, populated=GIB, budget=BUDGET)[0] == Hold()
    step, _ = decide(node, State(), now=0, populated=GIB, budget=BUDGET, reserved=4 * GIB)
    assert isinstance(step, Shrink)
    assert step.limited_by == "node (MemAvailable)"


@given(
    looks=st.lists(
        st.tuples(
            st.integers(-GIB, 2 * GIB), st.integers(0, 2 * GIB), st.floats(0, 40), st.booleans()
        ),
        max_size=30,
    )
)
def test_each_step_moves_the_ceiling_one_way_and_rises_never_come_without_calm(
    looks: list[tuple[int, int, float, bool]],
) -> None:
    state, now, moved = State(), 0.0, 0.0
    for free, populated, passed, stalled in looks:
        now += passed
        before = state.ceiling
        step, state = look(state, free=free, now=now, populated=populated, stalled=stalled)
        match step:
            case Hold():
                assert state.ceiling == before
            case Shrink():
                assert 0 <= step.ceiling == state.ceiling == populated - step.bytes
                assert before is None or state.ceiling < before
                moved = now
            case Grow():
                assert before is not None
                assert free >= 2 * KEEP
                assert state.ceiling is None or state.ceiling > before
                assert now - moved >= CALM_SECONDS
                moved = now
