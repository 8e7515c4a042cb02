"""Least recently used, by rank (``scheduler.md`` 6.5)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.policy.base import Find, KeyRun, Scratch
from kvoffload_agent.tiers.slots import READY, Mask, Slots, SlotTable

# A rank (a, b) is one integer a * SPAN + b; b is minus a position in tokens, so above -SPAN.
SPAN: Final = 1 << 31
# Above this, a is counted anew from the oldest resident chunk: a * SPAN must fit 64 bits.
_MAX_TICK: Final = 1 << 31


class LeastRecentlyUsed:
    """Ranks every resident chunk; the smallest leaves first."""

    def __init__(self, *, table: SlotTable, find: Find) -> None:
        self._table = table
        self._find = find
        self._ranks: NDArray[np.int64] = np.zeros(table.room, dtype=np.int64)
        self._tick = 0
        self._base = 0
        self._epoch = 0

    def grow(self) -> None:
        """Follow the slot table, which has become longer."""
        more = self._table.room - len(self._ranks)
        self._ranks = np.concatenate([self._ranks, np.zeros(more, dtype=np.int64)])

    def observe(self, scratch: Scratch, run: KeyRun, slots: Slots, seen: Mask) -> None:
        """Raise the ranks of keys that the request observes for the first time.

        Without positions nothing is raised until the request ends.
        """
        own = self._own(scratch)
        mask = scratch.add(run, seen) & (slots >= 0)
        if run.positions is None or not mask.any():
            return
        ranks = self._rank_of(own) - _offsets(run)
        at = slots[mask]
        self._ranks[at] = np.maximum(self._ranks[at], ranks[mask])

    def insert(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Rank new chunks: by position, or one after the other if it is not known."""
        own = self._own(scratch)
        if run.positions is None:
            self._ranks[slots] = self._fresh(len(slots))
        else:
            self._ranks[slots] = self._rank_of(own) - _offsets(run)

    def victims(self, count: int, *, blocked: Slots) -> Slots | None:
        """Return the evictable slots of the smallest ranks; equal ranks by hash, then group."""
        table = self._table
        evictable = table.refs[: table.count] == READY
        evictable[blocked] = False
        candidates = np.flatnonzero(evictable)
        if len(candidates) < count:
            return None
        ranks = self._ranks[candidates]
        if count < len(candidates):
            bound = np.partition(ranks, count - 1)[count - 1]
            candidates = candidates[ranks <= bound]
            ranks = self._ranks[candidates]
        order = np.argsort(ranks, kind="stable")
        return self._break_ties(candidates[order], ranks[order])[:count]

    def evict(self, slots: Slots) -> None:
        """Nothing to do: a slot's rank is written when it is filled."""

    def drop(self, slots: Slots) -> None:
        """Nothing to do: a slot's rank is written when it is filled."""

    def touch(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Make resident keys most recent, last key first."""
        del run
        scratch.enter(self._epoch)
        present = slots[slots >= 0][::-1]
        self._ranks[present] = self._fresh(len(present))

    def finish(self, scratch: Scratch) -> None:
        """Give what the request observed fresh ranks, its head the most recent."""
        scratch.enter(self._epoch)
        slots, _ = scratch.last_to_first(self._find)
        resident = slots[slots >= 0]
        self._ranks[resident] = self._fresh(len(resident))

    def reset(self) -> None:
        """Forget ranks and observations."""
        self._epoch += 1

    def order(self) -> Slots:
        """Return resident slots, first to leave first, equal ranks in order of insertion."""
        table = self._table
        resident = np.flatnonzero(table.keyed[: table.count])
        return resident[np.lexsort((table.born[resident], self._ranks[resident]))]

    def _own(self, scratch: Scratch) -> int:
        scratch.enter(self._epoch)
        if scratch.rank is None:
            scratch.rank = self._next()
        return scratch.rank

    def _next(self) -> int:
        self._tick += 1
        if self._tick - self._base > _MAX_TICK:
            self._rebase()
        return self._tick

    def _fresh(self, count: int) -> NDArray[np.int64]:
        """Return ``count`` ascending ranks above all others, at the cost of one tick."""
        return self._rank_of(self._next()) - np.arange(count - 1, -1, -1, dtype=np.int64)

    def _rank_of(self, tick: int) -> int:
        return max(tick - self._base, 0) * SPAN

    def _rebase(self) -> None:
        resident = self._ranks[: self._table.count][self._table.keyed[: self._table.count]]
        oldest = int(resident.min()) // SPAN if len(resident) else _MAX_TICK - 1
        self._ranks -= oldest * SPAN
        self._base += oldest

    def _break_ties(self, slots: Slots, ranks: NDArray[np.int64]) -> Slots:
        same = ranks[1:] == ranks[:-1]
        if not same.any():
            return slots
        hashes = self._table.hashes(slots)
        groups = self._table.groups[slots].tolist()
        keyed = list(zip(ranks.tolist(), hashes, groups, slots.tolist(), strict=True))
        keyed.sort()
        return np.array([entry[3] for entry in keyed], dtype=np.int64)


def _offsets(run: KeyRun) -> NDArray[np.int64]:
    if run.positions is None:
        return np.zeros(len(run.hashes), dtype=np.int64)
    return np.asarray(run.positions, dtype=np.int64)
