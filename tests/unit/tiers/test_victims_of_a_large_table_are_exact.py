"""Looking at a share of a table finds the same victims, in the same order, as sorting all of it."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvoffload_agent.tiers.policy import queue
from kvoffload_agent.tiers.policy.queue import RankQueue
from kvoffload_agent.tiers.slots import READY, WRITING, Mask, Slots, SlotTable

LIST: Final = 1
OTHER_LIST: Final = 2
# More than twice the sample, so that the bound is guessed from every second or third rank.
LARGE: Final = 3 * 16_384 + 100
HASH_BYTES: Final = 4


class Table:
    """A table whose ranks, pins and lists change at random, and its queue."""

    def __init__(self, size: int, seed: int, *, spread: int) -> None:
        self.random = np.random.default_rng(seed)
        self.table = SlotTable()
        self.table.extend(size)
        slots = self.table.take(size)
        self.hashes: NDArray[np.uint32] = np.zeros(self.table.room, dtype=">u4")
        self.hashes[slots] = self.random.permutation(size)
        hashes = self.hashes[slots].tobytes()
        self.table.fill(
            slots,
            group=0,
            hashes=[hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)],
        )
        self.table.refs[slots] = READY
        self.spread = spread
        self.ranks: NDArray[np.int64] = self.random.integers(0, spread, self.table.room)
        self.member: NDArray[np.int8] = np.full(self.table.room, LIST, dtype=np.int8)
        self.member[self.random.random(self.table.room) < 0.2] = OTHER_LIST
        self.queue = RankQueue(self.table, self.ranks, self.member, LIST)

    def expected(self, count: int, blocked: Mask) -> list[int]:
        """Sort everything: by rank, then by hash."""
        table = self.table
        good = (table.refs == READY) & table.keyed & (self.member == LIST) & ~blocked
        slots = np.flatnonzero(good[: table.count])
        order = np.lexsort((self.hashes[slots], self.ranks[slots]))
        return [int(slot) for slot in slots[order[:count]]]

    def some(self, share: float) -> Slots:
        """Return slots at random."""
        return np.flatnonzero(self.random.random(self.table.count) < share)

    def blocked(self, share: float) -> Mask:
        """Return a mask of slots that must not go."""
        mask = np.zeros(self.table.room, dtype=np.bool_)
        mask[self.some(share)] = True
        return mask

    def evict(self, slots: Slots) -> None:
        """Take victims away, as an eviction does."""
        self.table.refs[slots] = WRITING

    def change(self, share: float) -> None:
        """Give some slots other ranks, and let some that were written become ready."""
        touched = self.some(share)
        self.ranks[touched] = self.random.integers(0, self.spread, len(touched))
        self.table.refs[touched] = READY
        self.queue.note(touched)


def walk(table: Table, counts: list[int], *, blocked: float, changed: float) -> None:
    for count in counts:
        mask = table.blocked(blocked)
        found = table.queue.smallest(count, mask)
        assert found.tolist() == table.expected(count, mask)
        table.evict(found[: len(found) // 2])
        table.change(changed)


@pytest.mark.parametrize("blocked", [0.0, 0.3])
@pytest.mark.parametrize("changed", [0.001, 0.6])
@pytest.mark.parametrize("spread", [50_000, 10**9])
def test_victims_of_a_large_table_are_those_of_a_full_sort(
    blocked: float, changed: float, spread: int
) -> None:
    table = Table(LARGE, 7, spread=spread)
    walk(table, [1, 300, 5, 2_000, 700, 1], blocked=blocked, changed=changed)


def test_a_table_emptied_in_between_is_looked_at_anew() -> None:
    table = Table(LARGE, 8, spread=10**9)
    walk(table, [100], blocked=0.0, changed=0.0)
    table.queue.clear()
    table.ranks[:] = table.random.permutation(len(table.ranks))
    walk(table, [100, 2_000], blocked=0.0, changed=0.001)


@given(
    size=st.integers(1, 200),
    seed=st.integers(0, 1000),
    counts=st.lists(st.integers(1, 40), max_size=12),
    blocked=st.sampled_from([0.0, 0.3, 1.0]),
    changed=st.sampled_from([0.0, 0.02, 0.5]),
    spread=st.sampled_from([3, 40, 10**6]),
)
def test_victims_are_exact_whatever_share_of_the_table_is_sampled(
    *, size: int, seed: int, counts: list[int], blocked: float, changed: float, spread: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "_SAMPLE", 16)
        patch.setattr(queue, "_MIN_QUEUE", 2)
        patch.setattr(queue, "_TIMES", 2)
        walk(Table(size, seed, spread=spread), counts, blocked=blocked, changed=changed)


def test_an_eviction_from_a_large_table_looks_at_a_share_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The work of one look at all chunks is spread over at least a hundredth of them."""
    looks = []
    original = RankQueue._look_at_all

    def counted(self: RankQueue, count: int) -> None:
        looks.append(count)
        original(self, count)

    monkeypatch.setattr(RankQueue, "_look_at_all", counted)
    table = Table(LARGE, 9, spread=10**9)
    nothing = table.blocked(0.0)
    for _ in range(LARGE // 200):
        table.evict(table.queue.smallest(1, nothing))
    assert looks == [1]
