"""A pool that has lived so long that ranks are counted anew evicts as a young one does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.tiers.test_host_memory import Bench, _evicted

from kvoffload_agent.tiers.policy import lru


def history(requests: list[list[int]]) -> list[list[int]]:
    """Store the chunks of one request after the other; return what each of them evicted."""
    bench = Bench(6)
    evicted = []
    for keys in requests:
        request = bench.pool.open()
        grant = bench.offer(request, *keys, positions=range(16, 16 * len(keys) + 1, 16))
        evicted.append(_evicted(grant))
        assert grant is not None
        bench.pool.stored(request, grant.written(), success=True)
        bench.pool.finish(request)
    return evicted


@given(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True), max_size=40))
def test_eviction_does_not_depend_on_how_old_the_pool_is(requests: list[list[int]]) -> None:
    young = history(requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lru, "_MAX_TICK", 7)
        assert history(requests) == young


def test_ranks_begin_anew_in_an_empty_pool_too() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lru, "_MAX_TICK", 4)
        bench = Bench(2)
        for _ in range(10):
            request = bench.pool.open()
            grant = bench.offer(request, 1, 2, positions=[16, 32])
            assert grant is not None
            bench.pool.stored(request, grant.written(), success=False)
        bench.store(bench.pool.open(), 1, 2, positions=[16, 32])
        assert _evicted(bench.offer(bench.pool.open(), 3, positions=[16])) == [2]
