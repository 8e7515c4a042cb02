"""A load that fits into a step's budget is done before the step's forward (R7, example 46).

No recorded case has one: the specification's text is all there is.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.builders import FREE, World, full, sliding

from kvoffload_agent.scheduler.geometry import GeometryError
from kvoffload_agent.scheduler.lookup.budget import SyncBudget
from kvoffload_agent.scheduler.types import SchedulerConfig
from kvoffload_agent.tiers.pool import NotReadyError

F4 = full(4)


def world(budget: int, *, tokens: int = 17, **more: Any) -> World:
    """8 bytes for each token, everything in host memory."""
    made = World(F4, tokens=tokens, sync_budget=budget, bytes_per_token=8, **more)
    made.put_all()
    return made


@pytest.mark.parametrize(
    ("budget", "tokens", "load_async"),
    [(128, 17, False), (127, 17, True), (0, 17, True), (128, 16, True), (1 << 40, 16, True)],
)
def test_46_a_load_is_synchronous_if_it_fits_and_leaves_something_to_compute(
    budget: int, tokens: int, *, load_async: bool
) -> None:
    result = world(budget, tokens=tokens).ask()
    assert (result.tokens, result.load_async) == (16, load_async)


def test_requests_of_one_step_share_its_budget() -> None:
    made = world(128 + 64)
    first, second, third = (made.request() for _ in range(3))
    assert not made.match(first).load_async
    assert made.match(second).load_async
    assert not made.match(third, local=8).load_async, "half of it still fits"
    made.idle()
    made.idle()
    assert not made.match(second).load_async


def test_a_request_that_is_asked_about_twice_in_a_step_is_charged_once() -> None:
    made = world(128)
    handle = made.request()
    for _ in range(3):
        assert not made.match(handle).load_async


def test_a_second_answer_that_needs_less_gives_back_the_rest() -> None:
    made = world(128)
    first, second = made.request(), made.request()
    made.match(first)
    assert made.match(second, local=8).load_async
    made.match(first, local=8)
    assert not made.match(second, local=8).load_async


@pytest.mark.parametrize("how", ["nothing accepted", "ended", "local now"])
def test_what_is_not_used_is_free_for_others(how: str) -> None:
    made = world(128)
    first, second = made.request(), made.request()
    made.match(first)
    assert made.match(second).load_async
    match how:
        case "nothing accepted":
            made.alloc(first, 0)
        case "ended":
            made.end(first, status="aborted")
        case _:
            assert made.match(first, local=16).tokens == 0
    assert not made.match(second).load_async


def test_what_is_loaded_is_charged_until_the_step_is_built() -> None:
    made = world(128)
    first, second = made.request(), made.request()
    made.match(first)
    plan = made.alloc(first, 16).plan
    assert plan is not None
    made.done(plan)
    assert made.match(second).load_async
    made.idle()
    assert not made.match(second).load_async


def test_a_promise_that_is_kept_for_the_next_step_is_charged_to_that_one() -> None:
    made = world(128)
    first, second = made.request(), made.request()
    made.match(first)
    made.idle()
    assert made.match(second).load_async
    assert made.alloc(first, 16).plan is not None


def test_a_promise_of_more_than_two_steps_ago_is_void() -> None:
    made = world(128)
    handle = made.request()
    made.match(handle)
    made.idle()
    made.idle()
    with pytest.raises(NotReadyError, match=r"^a load within .* too many steps ago$"):
        made.alloc(handle, 16)
    assert (made.pool.host.table.refs[:4] == 0).all()


def test_blocks_that_are_hashed_already_are_loaded_and_none_below_the_local_ones() -> None:
    made = world(1 << 20)
    handle = made.request()
    made.match(handle, local=4)
    plan = made.alloc(handle, 12, [[-1, -2, -3, 4, 5]]).plan
    assert plan is not None
    assert plan.blocks.tolist() == [2, 3, 4]
    assert plan.first == (1,)


def test_nobody_waits_for_a_load_that_is_done_before_the_forward() -> None:
    made = world(128)
    first, second = made.request(), made.request()
    made.match(first)
    assert made.alloc(first, 16).plan is not None
    assert made.match(second).tokens == 16
    late = world(0)
    first, second = late.request(), late.request()
    late.match(first)
    assert late.alloc(first, 16).plan is not None
    assert late.match(second).tokens is None


def test_a_request_computes_and_stores_in_the_step_of_its_load() -> None:
    made = World(F4, tokens=24, sync_budget=1 << 20, bytes_per_token=8)
    made.put(0, made.hashes[:4])
    handle = made.request(FREE)
    assert not made.match(handle).load_async
    load = made.alloc(handle, 16, [[1, 2, 3, 4]]).plan
    assert load is not None
    made.computed[handle] = 16
    result = made.run(handle, 8, blocks=[[1, 2, 3, 4, 5, 6]], new=True)
    assert result.loads == (load.job,)
    assert made.chunks_of(result.stores) == [4, 5]
    made.done(load, *result.stores)
    assert not made.idle().busy


def test_a_model_of_several_groups_loads_asynchronously_whatever_the_budget() -> None:
    made = World(full(16), sliding(4, 8), tokens=65, sync_budget=1 << 40, bytes_per_token=8)
    made.put_all()
    result = made.ask()
    assert result.tokens
    assert result.load_async


def test_parts_of_a_byte_are_charged_as_a_whole_one() -> None:
    config = SchedulerConfig(
        groups=[F4], tokens_per_hash=4, sync_load_budget_bytes=100, block_bytes=3
    )
    made = world(128)
    geometry = type(made.engine.geometry)(config)
    assert [geometry.load_bytes(tokens) for tokens in (1, 4, 5, 8)] == [1, 3, 4, 6]


@pytest.mark.parametrize(("budget", "size"), [(-1, 32), (1, -1), (1, 0)])
def test_a_budget_that_makes_no_sense_is_refused(budget: int, size: int) -> None:
    with pytest.raises(GeometryError, match=r"budget"):
        World(F4, tokens=4, sync_budget=budget, bytes_per_token=size)


def test_every_load_of_a_step_is_charged_not_the_last_alone() -> None:
    budget = SyncBudget(100)
    for request in (1, 2):
        assert budget.reserve(request, 40)
        assert budget.use(request, 40)
    assert budget.charged == 80
    assert not budget.reserve(3, 21)
    assert budget.reserve(3, 20)


# --- laws ----------------------------------------------------------------------------------------

LIMIT = 100
REQUESTS = st.integers(0, 4)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), REQUESTS, st.integers(0, 120)),
        st.tuples(st.just("use"), REQUESTS, st.integers(0, 120)),
        st.tuples(st.just("release"), REQUESTS, st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_what_is_loaded_and_promised_in_a_step_never_exceeds_its_budget(
    operations: list[tuple[str, int, int]],
) -> None:
    budget = SyncBudget(LIMIT)
    promised: dict[int, int] = {}
    steps: dict[int, int] = {}
    loaded = 0
    for name, request, size in operations:
        match name:
            case "reserve":
                fits = budget.reserve(request, size)
                others = loaded + sum(promised[r] for r in promised if r != request)
                assert fits == (size + others <= LIMIT)
                promised.pop(request, None)
                if fits:
                    promised[request], steps[request] = size, 0
            case "use":
                assert budget.use(request, size) == (request in promised)
                loaded += min(size, promised.pop(request, 0))
            case "release":
                budget.release(request)
                promised.pop(request, None)
            case _:
                budget.end_step()
                loaded = 0
                steps = {request: age + 1 for request, age in steps.items()}
                promised = {r: size for r, size in promised.items() if steps[r] < 2}
        assert budget.charged == loaded + sum(promised.values()) <= LIMIT


@given(st.integers(0, 200), st.lists(st.integers(0, 200), max_size=6))
def test_asking_again_changes_nothing_for_others(size: int, others: list[int]) -> None:
    once, often = SyncBudget(LIMIT), SyncBudget(LIMIT)
    first = once.reserve(0, size)
    assert [often.reserve(0, size) for _ in range(3)] == [first] * 3
    for request, other in enumerate(others, 1):
        assert once.reserve(request, other) == often.reserve(request, other)
