"""When the state at a boundary inside a chunk is stored, and which blocks and keys go with it."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import FREE, StubTier, World, full, mamba

from kvoffload_agent.scheduler.types import CopyPlan, GroupConfig, Handoff, RequestCaps, TierMatcher

TABLE = [1, 2, 3]


def tail(
    *groups: GroupConfig,
    boundary: int = 28,
    scheduled: int = 40,
    loaded: bool = False,
    block: int = 77,
    tables: list[list[int]] | None = None,
) -> tuple[World, CopyPlan | None]:
    """Compute a prompt of 40 tokens with one hand-off; return the plan of its tail."""
    world = World(*groups, tokens=40, per_hash=4)
    handle = world.request(FREE)
    world.engine.requests[handle].loaded = loaded
    plans = world.run(
        handle,
        scheduled,
        handoffs=[Handoff(group=len(groups) - 1, block=block, boundary=boundary)],
        blocks=tables or [TABLE] * len(groups),
    ).stores
    number = len(groups) - 1
    found = [plan for plan in plans if any(group == number for group, _ in plan.keys)]
    return world, found[0] if found else None


def test_a_tail_holds_the_block_of_its_boundary_in_every_group() -> None:
    world, plan = tail(full(16), full(16), mamba(16))
    assert plan is not None
    assert plan.blocks.tolist() == [2, 2, 77]
    assert plan.index.tolist() == [0, 0, 0]
    assert plan.first == (1, 1, 1)
    assert list(plan.keys) == [(group, world.hashes[6]) for group in range(3)]


@pytest.mark.parametrize(("boundary", "block"), [(4, 1), (16, 1), (20, 2), (36, 3)])
def test_the_block_before_the_boundary_is_the_last_of_the_tail(boundary: int, block: int) -> None:
    _, plan = tail(full(16), mamba(16), boundary=boundary)
    assert plan is not None
    if boundary % 16:
        assert plan.blocks.tolist() == [block, 77]
    else:
        assert plan.blocks.tolist() == [77], "a whole chunk: the other group's is stored apart"


@pytest.mark.parametrize(
    ("loaded", "scheduled", "stored"),
    [(False, 40, False), (True, 40, True), (True, 32, True), (True, 31, False), (False, 31, False)],
)
def test_a_draft_models_tail_needs_a_load_before_it_and_its_proof_computed(
    *, loaded: bool, scheduled: int, stored: bool
) -> None:
    world, plan = tail(full(16, eagle=True), mamba(16), loaded=loaded, scheduled=scheduled)
    assert (plan is not None) is stored
    if plan is not None:
        assert list(plan.keys) == [(0, world.hashes[7]), (1, world.hashes[6])]
        assert plan.blocks.tolist() == [2, 77]


@pytest.mark.parametrize("boundary", [0, -4, 44])
def test_a_boundary_outside_the_prompt_stores_nothing(boundary: int) -> None:
    assert tail(full(16), mamba(16), boundary=boundary)[1] is None


def test_a_tail_without_a_block_in_some_group_is_not_stored() -> None:
    assert tail(full(16), mamba(16), block=0)[1] is None
    assert tail(full(16), mamba(16), tables=[[1, 0, 3], TABLE])[1] is None
    assert tail(full(16), mamba(16), tables=[[1], TABLE])[1] is None


def test_a_hand_off_of_one_state_group_is_no_tail_of_two() -> None:
    assert tail(full(16), mamba(16), mamba(16))[1] is None


def test_new_caps_restrict_the_tiers_of_a_request_that_is_there() -> None:
    world = World(full(16), tokens=16, tiers=[StubTier()])
    handle = world.request(FREE)
    request = world.engine.requests[handle].pool_request
    assert request.load_tiers
    assert request.store_tiers
    remote = (TierMatcher(medium="storage", locality="remote"),)
    world.engine.set_caps(handle, RequestCaps(load_tiers=remote, store_tiers=()))
    assert not request.load_tiers
    assert not request.store_tiers
