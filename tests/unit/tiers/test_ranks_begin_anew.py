"""A pool that has lived so long that ranks are counted anew evicts as a young one does."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize("limit", [4, 5, 6, 7, 1 << 31])
def test_a_request_older_than_every_chunk_stays_the_first_to_leave(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lru, "_MAX_TICK", limit)
    bench = Bench(4)
    old = bench.pool.open()
    bench.store(old, 1, positions=[16])
    for number in range(2, 8):
        bench.store(bench.pool.open(), *range(10 * number, 10 * number + 4), positions=[16] * 4)
    bench.store(old, 99, positions=[16])  # takes the place of one of the last request's
    assert _evicted(bench.offer(bench.pool.open(), 5, positions=[16])) == [99]


@pytest.mark.parametrize("limit", [3, 4, 5, 8, 1 << 31])
def test_however_often_ranks_began_anew_a_running_request_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lru, "_MAX_TICK", limit)
    for newer in range(3, 30):
        bench = Bench(4)
        old = bench.pool.open()
        bench.store(old, 1, positions=[16])
        for number in range(newer):
            bench.store(bench.pool.open(), 100 + number, positions=[16])
        bench.store(old, 2, positions=[8])
        # The chunks of younger requests stay, though they end further back in their prompts.
        assert _evicted(bench.offer(bench.pool.open(), 3, positions=[16])) == [2]


@pytest.mark.parametrize("limit", [3, 4, 5, 8, 1 << 31])
def test_a_request_older_than_every_chunk_is_ranked_below_the_oldest_of_them(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lru, "_MAX_TICK", limit)
    for newer in range(1, 20):
        bench = Bench(newer + 1)
        old = bench.pool.open()
        grant = bench.offer(old, 1, positions=[16])
        assert grant is not None
        bench.pool.stored(old, grant.written(), success=False)
        for number in range(newer):
            bench.store(bench.pool.open(), 100 + number, positions=[16])
        bench.store(old, 2, positions=[8])
        assert _evicted(bench.offer(bench.pool.open(), 3, positions=[16])) == [2]


def test_ranks_begin_anew_once_in_as_many_requests_as_can_be_ranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []
    original = lru.LeastRecentlyUsed._rebase

    def counted(self: lru.LeastRecentlyUsed) -> None:
        begun.append(self)
        original(self)

    monkeypatch.setattr(lru, "_MAX_TICK", 20)
    monkeypatch.setattr(lru.LeastRecentlyUsed, "_rebase", counted)
    bench = Bench(2)
    for number in range(100):
        bench.store(bench.pool.open(), number, positions=[16])
    assert len(begun) == 5  # at most two ranks are of chunks that are still there


@pytest.mark.parametrize("limit", [3, 4, 5, 6, 1 << 31])
def test_an_older_request_comes_first_in_a_pool_that_was_empty_in_between(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(lru, "_MAX_TICK", limit)
    bench = Bench(2)
    old = bench.pool.open()
    for request in (old, *(bench.pool.open() for _ in range(limit if limit < 10 else 3))):
        grant = bench.offer(request, 1, positions=[16])
        assert grant is not None
        bench.pool.stored(request, grant.written(), success=False)
    # The last one's rank was given while nothing was resident.
    bench.store(request, 2, positions=[16])
    bench.store(old, 3, positions=[16])
    assert _evicted(bench.offer(bench.pool.open(), 4, positions=[16])) == [3]


def test_positions_count_however_large_ranks_have_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lru, "SPAN", 1 << 58)  # as after as many requests as a pool can rank
    bench = Bench(100)
    bench.store(bench.pool.open(), *range(100), positions=range(16, 1616, 16))
    assert _evicted(bench.offer(bench.pool.open(), 200, 201, positions=[16, 32])) == [99, 98]


def test_every_reset_forgets_what_was_observed_before_it() -> None:
    bench = Bench(3)
    request = bench.pool.open()
    for _ in range(3):
        bench.store(request, 1, 2, positions=[16, 32])
        bench.pool.reset(bench.client, own=np.empty(0, dtype=np.int64))
    bench.store(bench.pool.open(), 1, 2, positions=[16, 32])
    bench.store(bench.pool.open(), 3, positions=[16])
    bench.pool.finish(request)  # what it observed is gone: these are others of the same names
    assert _evicted(bench.offer(bench.pool.open(), 4, positions=[16])) == [2]


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
