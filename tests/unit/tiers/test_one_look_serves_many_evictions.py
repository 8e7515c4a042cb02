"""The work of a look at all chunks is shared by as many evictions as it found victims for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kvoffload_agent.tiers.policy import queue
from kvoffload_agent.tiers.policy.queue import RankQueue
from kvoffload_agent.tiers.slots import READY, WRITING, Mask, Slots, SlotTable


class Looked(RankQueue):
    """Counts looks at all chunks, those that sorted all of them, and slots looked at in all."""

    looks = 0
    full_sorts = 0
    slots = 0

    def _look_at_all(self, count: int) -> None:
        self.looks += 1
        super()._look_at_all(count)

    def _exactly(self, size: int) -> Slots:
        self.full_sorts += 1
        return super()._exactly(size)

    def _evictable(self, slots: Slots) -> Mask:
        self.slots += len(slots)
        return super()._evictable(slots)


class Bench:
    """Ready chunks with given ranks; the hash of each is its number, so ties go by number."""

    def __init__(self, ranks: Sequence[int] | NDArray[np.int64]) -> None:
        size = len(ranks)
        self.table = SlotTable()
        self.table.extend(size)
        slots = self.table.take(size)
        self.table.fill(slots, group=0, hashes=[at.to_bytes(4, "big") for at in range(size)])
        self.table.refs[slots] = READY
        self.ranks = np.zeros(self.table.room, dtype=np.int64)
        self.ranks[:size] = ranks
        self.member = np.zeros(self.table.room, dtype=np.int8)
        self.queue = Looked(self.table, self.ranks, self.member, 0)

    def ask(self, count: int, blocked: Sequence[int] | Slots = ()) -> list[int]:
        """Find victims, none of which goes yet."""
        mask = np.zeros(self.table.room, dtype=np.bool_)
        mask[np.asarray(blocked, dtype=np.int64)] = True
        return [int(slot) for slot in self.queue.smallest(count, mask)]

    def evict(self, count: int) -> list[int]:
        victims = self.ask(count)
        self.table.refs[victims] = WRITING
        return victims

    def pin(self, *slots: int) -> None:
        self.table.refs[list(slots)] = 1

    def release(self, *slots: int) -> None:
        self.table.refs[list(slots)] = READY
        self.queue.note(np.array(slots, dtype=np.int64))


@pytest.mark.parametrize(
    ("size", "count", "served"),
    [
        (1_000, 1, 64),  # at least so many
        (1_000, 20, 160),  # eight times what was asked for
        (15_000, 1, 150),  # a hundredth of the table
    ],
)
def test_one_look_finds_at_least_so_many_victims(*, size: int, count: int, served: int) -> None:
    bench = Bench(range(size))
    found = [slot for _ in range(served // count) for slot in bench.evict(count)]
    assert found == list(range(served))
    assert bench.queue.looks == 1
    bench.evict(2 * served)
    assert bench.queue.looks == 2


def test_a_table_smaller_than_one_look_is_looked_at_once() -> None:
    bench = Bench(range(64))
    assert [bench.evict(1)[0] for _ in range(64)] == list(range(64))
    assert bench.queue.looks == 1


def test_the_last_victims_that_a_look_found_need_no_other() -> None:
    bench = Bench(range(1_000))
    assert bench.evict(1) == [0]
    assert bench.evict(64) == list(range(1, 65))
    assert bench.queue.looks == 1


def test_blocked_chunks_do_not_hide_those_behind_them() -> None:
    bench = Bench(range(1_000))
    assert bench.ask(10, blocked=range(300)) == list(range(300, 310))
    assert bench.queue.looks == 1


def test_chunks_blocked_later_do_not_hide_those_behind_them() -> None:
    bench = Bench(range(10_000))
    assert bench.ask(1) == [0]
    assert bench.ask(2, blocked=range(90)) == [90, 91]
    assert bench.queue.looks == 1


def test_victims_that_are_gone_are_not_looked_at_again() -> None:
    bench = Bench(range(15_000))
    bench.evict(1)
    before = bench.queue.slots
    for at in range(1, 151):
        assert bench.evict(1) == [at]
    assert bench.queue.slots - before <= 150 * (2 + 64)


def test_a_chunk_that_returns_with_the_largest_rank_found_is_among_the_victims() -> None:
    bench = Bench(range(1_000))
    bench.evict(1)  # found are those of ranks 0 to 64
    bench.ranks[900] = 64
    bench.release(900)
    assert bench.evict(65) == [*range(1, 65), 900]
    assert bench.queue.looks == 1


def test_chunks_of_the_largest_rank_found_leave_in_the_order_of_their_hashes() -> None:
    ranks = list(range(100))
    ranks[70] = 64  # as 64 has, which is the last that one look finds
    bench = Bench(ranks)
    bench.pin(70)
    assert bench.evict(64) == list(range(64))
    bench.release(70)
    assert bench.evict(2) == [64, 70]


def test_a_sampled_table_orders_chunks_of_its_largest_rank_by_hash_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "_SAMPLE", 64)
    bench = Bench([at // 4 for at in range(1_000)])  # ranks of four chunks each
    bench.pin(*range(2, 1_000, 4))
    found = bench.evict(1)
    bench.release(*range(2, 1_000, 4))
    while len(found) < 400:
        found += bench.evict(1)
    assert found == list(range(400))


def test_what_was_noted_is_merged_while_it_is_no_more_than_the_table() -> None:
    bench = Bench([0] * 200)
    bench.ask(1)
    for _ in range(3):  # after the first look, and after what was noted was merged
        bench.release(*range(200))
        assert bench.ask(1) == [0]
        assert bench.queue.looks == 1
    bench.release(*range(200))
    bench.release(0)
    assert bench.ask(1) == [0]
    assert bench.queue.looks == 2


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_large_table_is_not_sorted_where_a_sample_tells_the_bound(steps: int) -> None:
    size = steps * 16_384 + 50
    bench = Bench(np.random.default_rng(steps).permutation(size))
    assert [int(bench.ranks[slot]) for slot in bench.evict(10)] == list(range(10))
    assert (bench.queue.looks, bench.queue.full_sorts) == (1, 0)


def test_a_sample_of_fewer_chunks_than_are_sought_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "_SAMPLE", 16)
    bench = Bench(range(64))  # one in four is sampled: 16, a quarter of what is sought
    assert bench.evict(3) == [0, 1, 2]
    assert bench.queue.full_sorts == 1


def test_a_sample_that_misleads_costs_a_look_and_no_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_SAMPLE", 64)
    # Sampled chunks are older or younger than all others: far too few or far too many remain.
    for low, high in ((0, 1_000_000), (1_000_000, 0)):
        ranks = [low + at if at % 32 == 0 else high + at for at in range(64 * 32)]
        bench = Bench(ranks)
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        assert bench.evict(10) == order[:10]
        assert bench.queue.full_sorts == 1
