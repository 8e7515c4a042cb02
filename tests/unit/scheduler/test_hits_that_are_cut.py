"""An engine may accept less of a hit than was promised, also of one that ends inside a chunk.

vLLM's scheduler can trim an accepted hit after the lookup; its own offload scheduler asserts then
if a partial tail was chosen. Blocks of 16 tokens, a hash for every 4.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.builders import World, full, mamba

from kvoffload_agent.scheduler.load import UnexpectedLoadError
from kvoffload_agent.scheduler.types import GroupConfig, LoadResult

F16, M16 = full(16), mamba(16)
ENDS = range(4, 60, 4)


def promised(
    *groups: GroupConfig, states: tuple[int, ...], tokens: int = 62, attention: tuple[int, ...] = ()
) -> tuple[World, int]:
    """Ask for a prompt whose states are there at these ends, and the attention's KV everywhere.

    ``attention``: only at these ends. Returns the world and what was promised.
    """
    world = World(*groups, tokens=tokens, per_hash=4)
    for number, group in enumerate(groups):
        ends = states if group.mamba_align else attention or ENDS
        world.put(number, [world.hashes[end // 4 - 1] for end in ends])
    hit = world.ask().tokens
    assert hit is not None
    return world, hit


def cut(world: World, tokens: int) -> LoadResult:
    """Accept so many tokens, with the table that the engine makes for them."""
    blocks = -(-tokens // 16)
    attention = world.new_blocks(blocks)
    state = [0] * (blocks - 1) + world.new_blocks(1)
    return world.alloc(world.handle, tokens, [attention, state])


def ends(world: World, result: LoadResult) -> list[list[int]]:
    """Return per group the ends of the keys that a plan reads."""
    assert result.plan is not None
    at = {key: 4 * (number + 1) for number, key in enumerate(world.hashes)}
    return [[at[key] for group, key in result.plan.keys if group == g] for g in (0, 1)]


def test_a_tail_that_is_cut_off_leaves_the_whole_chunks_before_it() -> None:
    world, hit = promised(F16, M16, states=(16, 28))
    assert hit == 28
    assert ends(world, cut(world, 16)) == [[16], [16]]


def test_a_hit_cut_to_where_another_tail_ends_loads_that_one() -> None:
    world, hit = promised(F16, M16, states=(16, 20, 28))
    assert hit == 28
    assert ends(world, cut(world, 20)) == [[16, 20], [16 + 4]]


@pytest.mark.parametrize("tokens", [20, 24, 18, 27])
def test_without_a_state_at_the_new_end_nothing_is_loaded(tokens: int) -> None:
    world, hit = promised(F16, M16, states=(16, 28))
    assert hit == 28
    assert cut(world, tokens).plan is None
    assert not world.idle().busy, "nothing is pinned, nothing waits for an acknowledgement"


def test_a_hit_cut_before_the_last_whole_state_loads_nothing_instead_of_the_wrong_one() -> None:
    world, hit = promised(F16, M16, states=(32, 44))
    assert hit == 44
    assert cut(world, 16).plan is None
    world, hit = promised(F16, M16, states=(16, 32, 44))
    assert ends(world, cut(world, 16)) == [[16], [16]]


def test_a_hit_of_whole_chunks_cut_inside_a_chunk_never_loads_the_state_of_its_end() -> None:
    world, hit = promised(F16, M16, states=(16, 32))
    assert hit == 32
    assert cut(world, 28).plan is None


def test_a_hit_of_whole_chunks_cut_to_a_chunk_without_a_state_loads_nothing() -> None:
    world, hit = promised(F16, M16, states=(48,))
    assert hit == 48
    assert cut(world, 16).plan is None
    assert not world.idle().busy


def test_a_hit_of_whole_chunks_cut_to_where_a_tail_ends_loads_that_one() -> None:
    world, hit = promised(F16, M16, states=(4, 16))
    assert hit == 16
    assert ends(world, cut(world, 4)) == [[4], [4]]


def test_what_was_not_loaded_is_computed_and_offered_from_the_first_chunk() -> None:
    world, _ = promised(F16, M16, states=(28,), attention=(28,))
    assert cut(world, 20).plan is None
    stored = world.run(world.handle, 62, blocks=[world.new_blocks(4), world.new_blocks(4)]).stores
    assert world.chunks_of(stored) == [0, 1, 2]


def test_a_draft_models_tail_that_is_cut_needs_its_proof_too() -> None:
    world, hit = promised(full(16, eagle=True), M16, states=(20, 28))
    assert hit == 28
    assert ends(world, cut(world, 20)) == [[16, 24], [20]]


def test_more_than_a_tail_promised_is_refused() -> None:
    world, _ = promised(F16, M16, states=(16, 28))
    with pytest.raises(UnexpectedLoadError, match="28"):
        cut(world, 32)


@given(states=st.sets(st.sampled_from(ENDS), min_size=1), data=st.data())
def test_a_load_reads_a_state_of_exactly_its_end_or_nothing(
    states: set[int], data: st.DataObject
) -> None:
    world, hit = promised(F16, M16, states=tuple(sorted(states)))
    if not hit:
        return
    tokens = data.draw(st.integers(1, hit))
    result = cut(world, tokens)
    if result.plan is None:
        assert tokens not in states
        return
    attention, [state] = ends(world, result)
    assert state == tokens
    assert attention[-1] >= tokens
    world.done(result.plan)
    assert (world.pool.host.table.refs[: world.pool.host.table.count] <= 0).all()
