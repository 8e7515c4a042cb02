"""The worked examples of the specification's section 8: what is stored."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import FREE, World, full, mamba, sliding

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import Handoff, RequestCaps
from kvoffload_agent.tiers.host import HostConfig


@pytest.mark.parametrize(
    ("cap", "chunks"), [(0, 0), (11, 0), (12, 1), (24, 2), (35, 2), (36, 3), (None, 3)]
)
def test_49_a_store_cap_counts_whole_chunks(cap: int | None, chunks: int) -> None:
    world = World(full(4), tokens=36, per_chunk=3)
    handle = world.request(RequestCaps(max_offload_tokens=cap))
    assert world.chunks_of(world.run(handle, 36).stores) == list(range(chunks))


@pytest.mark.parametrize(("prompt_only", "chunks"), [(True, [0, 1]), (False, [0, 1, 2, 3])])
def test_50_decoded_chunks_are_stored_unless_the_prompt_alone_is_wanted(
    prompt_only: bool,  # noqa: FBT001 - a test's parameter
    chunks: list[int],
) -> None:
    world = World(full(4), tokens=10)
    handle = world.request(RequestCaps(prompt_only=prompt_only))
    plans = [*world.run(handle, 10).stores]
    for _ in range(6):
        world.grow(handle, 1)
        plans += world.run(handle, 1).stores
    assert world.chunks_of(plans) == chunks


def test_51_the_last_sampled_token_was_never_written() -> None:
    world = World(full(4), tokens=7)
    handle = world.request()
    plans = [*world.run(handle, 7).stores]
    world.grow(handle, 1)
    plans += world.end(handle).stores
    assert world.chunks_of(plans) == [0]


def test_52_the_newest_chunk_of_a_draft_model_waits_for_the_end() -> None:
    world = World(full(4, eagle=True), tokens=12)
    handle = world.request()
    prefill = world.run(handle, 12).stores
    decode = []
    for _ in range(5):
        world.grow(handle, 1)
        decode += world.run(handle, 1).stores
    assert world.chunks_of(prefill) == [0, 1, 2]
    assert world.chunks_of(decode) == []
    assert world.chunks_of(world.end(handle).stores) == [3]


@pytest.mark.parametrize(
    ("extra", "blocks"), [(0, [2, 3, 6, 7]), (1, [2, 3, 6, 7]), (3, [1, 2, 3, 5, 6, 7])]
)
def test_53_a_window_is_stored_before_each_place_where_a_hit_can_end(
    extra: int, blocks: list[int]
) -> None:
    world = World(full(16), sliding(4, 8, extra=extra), tokens=33)
    handle = world.request()
    assert world.chunks_of(world.run(handle, 33).stores, 1) == blocks


@pytest.mark.parametrize(("retention", "blocks"), [(32, [6, 7, 10, 11, 14, 15]), (0, [10, 11])])
def test_54_retention_thins_windows_out(retention: int, blocks: list[int]) -> None:
    world = World(full(16), sliding(4, 8), tokens=64, retention=retention)
    handle = world.request()
    assert world.chunks_of(world.run(handle, 64).stores, 1) == blocks


def test_55_the_last_window_of_a_prompt_is_stored_as_well() -> None:
    world = World(full(36), sliding(4, 16), tokens=1200)
    handle = world.request()
    plans = [*world.run(handle, 1000).stores, *world.run(handle, 200).stores]
    tails = [block for block in range(297) if block % 9 >= 5]
    assert world.chunks_of(plans, 1) == [*tails, 297, 298, 299]


def test_56_an_aborted_request_keeps_its_own_last_window() -> None:
    world = World(full(36), sliding(4, 16), tokens=1200)
    handle = world.request()
    world.run(handle, 1000)
    final = world.end(handle, status="aborted").stores
    assert world.chunks_of(final, 1) == [246, 247]


def test_a_last_window_whose_block_the_request_reused_is_not_stored() -> None:
    """Block 4 left the window, and holds tokens 28 to 31 when the request is aborted at 29."""
    world = World(full(8), sliding(4, 6, extra=1), tokens=32, per_chunk=2)
    handle = world.request()
    attention, window = [1, 2, 3, 4], [11, 12, 13, 14, 15, 16, 17]
    world.run(handle, 27, blocks=[attention, window])
    world.run(handle, 1, blocks=[[], []])
    world.run(handle, 1, blocks=[[], [15]])
    final = world.end(handle, status="aborted").stores
    assert 15 not in [block for plan in final for block in plan.blocks.tolist()]


@pytest.mark.parametrize("taker", ["its window", "its attention", "another"])
def test_a_reset_stores_a_window_again_but_for_blocks_that_hold_others_kv(taker: str) -> None:
    """Chunks 0 and 1 left the window; block 12, of chunk 1, was given away since."""
    world = World(full(4), sliding(4, 8), tokens=20)
    world.engine = EngineScheduler(world.config, world.pool, safe_reset=True)
    handle = world.request()
    stored = world.run(handle, 16, blocks=[[1, 2, 3, 4], [11, 12, 13, 14]]).stores
    world.done(*stored)
    if taker == "its window":
        world.run(handle, 1, blocks=[[5], [12]])
    elif taker == "its attention":
        world.run(handle, 1, blocks=[[12], [15]])
    else:
        world.run(world.request(), 4, blocks=[[5], [12]])
    world.engine.reset()

    again = world.run(handle, 1, blocks=[[6], [16]]).stores
    assert world.chunks_of(again, 1) == [0, 2, 3]
    assert [block for plan in again for block in plan.blocks.tolist() if block > 10] == [11, 13, 14]


def test_a_block_shared_with_its_kv_is_stored_again_by_each_who_has_it() -> None:
    world = World(full(4), sliding(4, 8), tokens=20)
    world.engine = EngineScheduler(world.config, world.pool, safe_reset=True)
    first = world.request()
    world.done(*world.run(first, 8, blocks=[[1, 2], [11, 12]]).stores)
    second = world.request()
    world.match(second, local=8)
    world.alloc(second, 0, [[-1, -2, 3], [-11, -12, 13]])
    world.computed[second] = 8
    world.run(second, 1, blocks=[[1, 2, 3], [11, 12, 13]], new=True)
    world.engine.reset()

    again = world.run(first, 1, blocks=[[4], [14]]).stores
    assert world.chunks_of(again, 1) == [0, 1]


@pytest.mark.parametrize(("cap", "stored"), [(None, True), (0, False), (16, False), (28, True)])
def test_57_a_tail_beyond_the_store_cap_is_skipped(cap: int | None, stored: bool) -> None:  # noqa: FBT001
    world = World(full(16), mamba(16), tokens=30, per_hash=4)
    handle = world.request(RequestCaps(max_offload_tokens=cap))
    handoff = Handoff(group=1, block=77, boundary=28)
    plans = world.run(handle, 30, handoffs=[handoff]).stores
    tails = [plan for plan in plans if (1, world.hashes[6]) in plan.keys]
    assert bool(tails) is stored
    if tails:
        assert tails[0].group_sizes == (1, 1)
        assert tails[0].blocks.tolist()[1] == 77


def test_58_a_refused_offer_comes_again() -> None:
    world = World(full(4), tokens=16, slots=3)
    world.put(0, [b"a" * 32, b"b" * 32], written=False)
    handle = world.request()
    assert world.run(handle, 8).stores == ()
    state = world.engine.requests[handle]
    assert state.next_store == [0]
    world.pool.add_slots(4)
    assert world.chunks_of(world.run(handle, 8).stores) == [0, 1, 2, 3]


def test_59_loaded_chunks_are_not_offered_again() -> None:
    world = World(full(4), tokens=17)
    world.put_all()
    assert world.ask(RequestCaps(max_load_tokens=8)).tokens == 8
    plan = world.alloc(world.handle, 8, [[1, 2]]).plan
    assert plan is not None
    world.idle()
    world.done(plan)
    world.engine.pool.reset(world.engine.client, own=plan.slots[:0])
    world.computed[world.handle] = 8
    stores = world.run(world.handle, 9, blocks=[[1, 2, 3, 4, 5]], new=True).stores
    assert world.chunks_of(stores) == [2, 3]


def test_60_what_only_the_engine_had_is_offered() -> None:
    world = World(full(4), tokens=16)
    handle = world.request()
    world.match(handle, local=8)
    world.computed[handle] = 8
    result = world.run(handle, 8, blocks=[[1, 2, 3, 4]], new=True)
    assert world.chunks_of(result.stores) == [0, 1, 2, 3]


def test_a_hole_in_a_chunk_is_explicit() -> None:
    """Two blocks a chunk, one of them outside every window that a hit can need."""
    world = World(full(16), sliding(4, 4), tokens=32, per_chunk=2, retention=32)
    handle = world.request()
    tables = [[1, 2], [0, 0, 0, 0, 0, 0, 0, 8]]
    [plan] = world.run(handle, 32, blocks=tables).stores
    assert plan.group_sizes == (2, 1)
    assert plan.blocks.tolist() == [1, 2, 8]
    assert plan.index.tolist() == [0, 1, 1]
    assert plan.first == (0, 7)


def test_a_threshold_stores_at_the_second_offer() -> None:
    world = World(full(4), tokens=8, host=HostConfig(store_threshold=2))
    assert world.run(world.request(FREE), 8).stores == ()
    [plan] = world.run(world.request(FREE), 8).stores
    assert world.chunks_of([plan]) == [0, 1]
