"""Least recently used, by rank (``scheduler.md`` 6.5)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.policy.base import Find, KeyRun, Scratch
from kvoffload_agent.tiers.policy.queue import RankQueue
from kvoffload_agent.tiers.slots import Mask, Slots, SlotTable

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
        self._member: NDArray[np.int8] = np.zeros(table.room, dtype=np.int8)
        self._queue = RankQueue(table, self._ranks, self._member, 0)
        self._tick = 0
        self._base = 0
        self._epoch = 0

    def grow(self) -> None:
        """Follow the slot table, which has become longer."""
        more = self._table.room - len(self._ranks)
        self._ranks = np.concatenate([self._ranks, np.zeros(more, dtype=np.int64)])
        self._member = np.zeros(self._table.room, dtype=np.int8)
        self._queue.follow(self._ranks, self._member)

    def observe(self, scratch: Scratch, run: KeyRun, slots: Slots, seen: Mask) -> None:
        """Raise the ranks of keys that the request observes for the first time.

        Without positions nothing is raised until the request ends.
        """
        scratch.enter(self._epoch)
        if not seen.any():
            return  # an offer of nothing but pending keys gives a request no rank yet
        own = self._own(scratch)
        mask = scratch.add(run, seen) & (slots >= 0)
        if run.positions is None or not mask.any():
            return
        ranks = self._rank_of(own) - run.positions
        self._set(slots[mask], ranks[mask], raise_only=True)

    def insert(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Rank new chunks: by position, or one after the other if it is not known."""
        own = self._own(scratch)
        if run.positions is None:
            self._set(slots, self._fresh(len(slots)))
        else:
            self._set(slots, self._rank_of(own) - run.positions)

    def victims(self, count: int, *, blocked: Mask) -> Slots | None:
        """Return the evictable slots of the smallest ranks; equal ranks by hash, then group."""
        found = self._queue.smallest(count, blocked)
        return found if len(found) == count else None

    def released(self, slots: Slots) -> None:
        """Chunks became readable, or are read no longer."""
        self._queue.note(slots)

    def evict(self, slots: Slots) -> None:
        """Nothing to do: a slot's rank is written when it is filled."""

    def drop(self, slots: Slots) -> None:
        """Nothing to do: a slot's rank is written when it is filled."""

    def touch(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Make resident keys most recent, last key first."""
        del run
        scratch.enter(self._epoch)
        present = slots[slots >= 0][::-1]
        self._set(present, self._fresh(len(present)))

    def finish(self, scratch: Scratch) -> None:
        """Give what the request observed fresh ranks, its head the most recent."""
        scratch.enter(self._epoch)
        slots, _ = scratch.last_to_first(self._find)
        resident = slots[slots >= 0]
        self._set(resident, self._fresh(len(resident)))

    def used_at(self, slots: Slots) -> Slots:
        """Return the tick of each slot's rank; positions of one request count the same."""
        used: Slots = -(-self._ranks[slots] // SPAN)
        return used

    def reset(self) -> None:
        """Forget ranks and observations."""
        self._epoch += 1
        self._queue.clear()

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
        self._queue.clear()

    def _set(self, slots: Slots, ranks: NDArray[np.int64], *, raise_only: bool = False) -> None:
        if raise_only:
            ranks = np.maximum(self._ranks[slots], ranks)
        self._ranks[slots] = ranks
        self._queue.note(slots)
