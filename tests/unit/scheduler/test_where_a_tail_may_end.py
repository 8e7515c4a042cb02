"""How far behind its whole chunks a hit may end, and what each group needs there (rule R8)."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import StubTier, World, full, mamba

from kvoffload_agent.scheduler.types import GroupConfig
from kvoffload_agent.tiers.secondary import Verdict

DRAFT, F16, M16 = full(16, eagle=True), full(16), mamba(16)
Ends = tuple[int, ...]


def world(
    *groups: tuple[GroupConfig, Ends],
    tokens: int = 60,
    per_hash: int = 4,
    pending: dict[int, Ends] | None = None,
    tiers: tuple[StubTier, ...] = (),
) -> World:
    """Make a prompt with each group's keys at these ends, and some that are being written."""
    made = World(*(group for group, _ in groups), tokens=tokens, per_hash=per_hash, tiers=tiers)
    for number, (_, ends) in enumerate(groups):
        made.put(number, [made.hashes[end // per_hash - 1] for end in ends])
    for number, ends in (pending or {}).items():
        made.put(number, [made.hashes[end // per_hash - 1] for end in ends], written=False)
    return made


@pytest.mark.parametrize(("tokens", "hit"), [(28, 24), (29, 28), (30, 28)])
def test_one_token_of_the_prompt_is_left_to_compute(tokens: int, hit: int) -> None:
    ends = tuple(range(4, tokens + 1, 4))
    made = world((F16, ends), (M16, tuple(end for end in (16, 24, 28) if end <= tokens)))
    made.tokens = tokens
    assert made.ask().tokens == hit


@pytest.mark.parametrize("end", [1, 2, 3, 5, 7])
def test_a_tail_may_end_at_any_token_if_every_token_has_a_hash(end: int) -> None:
    whole = (4,) if end > 4 else ()
    keys = (*whole, end)
    made = world((full(4), keys), (mamba(4), keys), tokens=10, per_hash=1)
    assert made.ask().tokens == end
    plan = made.alloc(made.handle, end).plan
    assert plan is not None
    assert plan.group_sizes == (end // 4 + 1, end // 4 + 1)


def test_the_next_chunk_may_be_the_end_if_only_its_proof_kept_it_from_being_one() -> None:
    rows = ((DRAFT, (16, 20)), (M16, (16,)))
    assert world(*rows, tokens=20).ask().tokens == 16
    assert world(*rows, tokens=60).ask().tokens == 16


def test_the_next_chunk_is_waited_for_where_it_is_the_end() -> None:
    made = world((DRAFT, (20,)), (M16, (16,)), pending={0: (16,)})
    assert made.ask().tokens is None


def test_nothing_behind_a_chunk_that_is_missing_is_waited_for() -> None:
    made = world((DRAFT, ()), (M16, (16,)), pending={0: (20,)})
    assert made.ask().tokens == 0


def test_a_tail_reaches_no_further_than_the_next_chunk() -> None:
    assert world((DRAFT, (16, 32)), (M16, (28,))).ask().tokens == 28
    assert world((DRAFT, (16, 36)), (M16, (32,))).ask().tokens == 0


def test_the_chunk_to_be_bridged_is_that_of_attention_wherever_its_group_stands() -> None:
    assert world((M16, (28,)), (DRAFT, (16, 32))).ask().tokens == 28
    assert world((M16, (28,)), (DRAFT, (32,))).ask().tokens == 0


def test_only_the_draft_model_proves_a_token_more() -> None:
    rows = ((DRAFT, (16, 32)), (F16, (16, 28)), (M16, (16, 28)))
    made = world(*rows)
    assert made.ask().tokens == 28
    plan = made.alloc(made.handle, 28).plan
    assert plan is not None
    assert [made.hashes.index(key) * 4 + 4 for _, key in plan.keys] == [16, 32, 16, 28, 16, 28]


def test_a_hit_of_whole_chunks_has_no_tail_to_prove() -> None:
    made = world((DRAFT, (16, 32)), (M16, (16,)))
    assert made.ask().tokens == 16
    plan = made.alloc(made.handle, 16, [[1], [2]]).plan
    assert plan is not None
    assert [made.hashes.index(key) * 4 + 4 for _, key in plan.keys] == [16, 16]


def test_a_tail_that_a_disk_has_is_promoted_and_waited_for() -> None:
    disk = StubTier()
    made = world((F16, ()), (M16, ()), tokens=30, tiers=(disk,))
    key = made.hashes[2]
    disk.answers = {(0, key): Verdict.HIT, (1, key): Verdict.HIT}
    assert made.ask().tokens is None
    assert [int(made.pool.find(made.engine.client, group, [key])[0]) for group in (0, 1)] == [0, 1]
    made.idle()
    assert sorted(found for keys in disk.loads.values() for found in keys) == [(0, key), (1, key)]
