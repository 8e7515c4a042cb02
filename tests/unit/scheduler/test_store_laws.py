"""The invariants of section 9 that concern stores, on random configurations and lives."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock, call, patch

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.lives import ENOUGH, FILTERS, LIMITS, Life, Plot, ends, plots

from kvoffload_agent.scheduler.types import RequestCaps, TierMatcher
from kvoffload_agent.tiers.secondary import Finished
from kvoffload_agent.tiers.slots import EMPTY, READY, WRITING


@given(plots())
def test_what_is_stored_ends_within_what_may_be_offloaded(plot: Plot) -> None:
    life = Life(plot)
    for _, result in life.run():
        for plan in result.stores:
            assert plan.keys
            assert max(ends(life, plan)) <= life.limit


@given(plots())
def test_the_cursor_moves_back_at_queries_only(plot: Plot) -> None:
    life = Life(plot)
    before = [0] * len(life.state.next_store)
    for kind, _ in life.run():
        now = life.state.next_store
        if kind == "preempt":
            assert now == [0] * len(now)
        assert all(new >= old for new, old in zip(now, before, strict=True)) or kind == "preempt"
        before = list(now)


@given(plots())
def test_every_entry_of_a_store_is_the_block_of_its_chunk(plot: Plot) -> None:
    life = Life(plot)
    per_chunk = plot.scene.per_chunk
    groups = life.world.engine.geometry.groups
    for kind, result in life.run():
        for plan in result.stores:
            assert 0 not in plan.blocks
            assert len(set(plan.slots.tolist())) == len(plan.keys)
            if kind == "hand over":
                continue  # such a block is in no table
            at = 0
            keys = life.world.pool.host.keys(plan.slots)
            for group, size in zip(groups, plan.group_sizes, strict=True):
                for entry in range(at, at + size):
                    number, key = keys[entry]
                    assert number == group.number
                    chunk = life.state.keys[number].index(key)
                    block = chunk * per_chunk + int(plan.index[entry])
                    assert life.given[number][block] == plan.blocks[entry]
                at += size


@given(plots(slots=st.just(ENOUGH)), LIMITS, FILTERS)
def test_stores_depend_neither_on_the_load_cap_nor_on_the_tiers_to_load_from(
    plot: Plot, cap: int | None, tiers: tuple[TierMatcher, ...] | None
) -> None:
    """Of a request that loads nothing: what it loads it need not store."""

    def other(caps: RequestCaps) -> RequestCaps:
        return replace(caps, max_load_tokens=cap, load_tiers=tiers)

    first = Life(plot)
    second = Life(replace(plot, caps=other(plot.caps), later=other(plot.later)))
    for life in (first, second):
        life.world.match(life.handle)
    for (_, one), (_, two) in zip(first.run(), second.run(), strict=True):
        assert [list(p.keys) for p in one.stores] == [list(p.keys) for p in two.stores]
        assert [plan.blocks.tolist() for plan in one.stores] == [
            plan.blocks.tolist() for plan in two.stores
        ]
        assert one.flush == two.flush


@given(plots())
def test_a_request_is_finished_once_and_after_its_last_offer(plot: Plot) -> None:
    life = Life(plot)
    pool, request = life.world.pool, life.state.pool_request
    calls = Mock()
    with (
        patch.object(pool, "offer", wraps=pool.offer) as offer,
        patch.object(pool, "finish", wraps=pool.finish) as finish,
    ):
        calls.attach_mock(offer, "offer")
        calls.attach_mock(finish, "finish")
        for kind, _ in life.run():
            assert finish.call_count == (kind == "end")
        life.all_done()
        life.world.idle()
    assert finish.call_args == call(request)
    assert calls.mock_calls[-1] == call.finish(request)


@given(plot=plots(), success=st.booleans())
def test_every_completion_gives_back_what_its_offer_took(plot: Plot, *, success: bool) -> None:
    life = Life(plot)
    [tier] = life.world.tiers
    table = life.world.pool.host.table
    for _ in life.run():
        refs = table.refs[: table.count]
        mine = {int(slot) for plan in life.open for slot in plan.slots}
        assert mine == {slot for slot, ref in enumerate(refs.tolist()) if ref == WRITING}
    jobs = [plan.job for plan in life.open]
    failed = {int(slot) for plan in life.open for slot in plan.slots} if not success else set()
    life.world.engine.complete(
        done=jobs if success else [], failed=[] if success else jobs, now=0.0
    )
    tier.done += [Finished(job=job, success=True) for job in tier.stores]
    life.world.idle()
    refs = table.refs[: table.count]
    assert {READY, EMPTY} >= set(refs.tolist())
    assert all(refs[slot] == EMPTY for slot in failed)
    assert life.handle not in life.world.engine.requests
