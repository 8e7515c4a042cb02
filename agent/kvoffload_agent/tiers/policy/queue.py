"""The chunks of smallest rank, without looking at all of them each time."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.slots import READY, Mask, Slots, SlotTable

# One look at all chunks finds this share of them, or this many times what is asked for, so that
# its cost is spread over as many evictions (``datapath.md`` 5.3: about 1 µs a victim).
_SHARE: Final = 100
_TIMES: Final = 8
_MIN_QUEUE: Final = 64
# A hundredth of so many ranks is found to within a few parts in a hundred.
_SAMPLE: Final = 16_384
_SLACK: Final = 4

_NOTHING: Final[Slots] = np.empty(0, dtype=np.int64)


class RankQueue:
    """Finds evictable slots of smallest rank among those of one list.

    A queue holds, ascending, every evictable slot whose rank was at most ``bound`` when all were
    looked at. Whatever becomes evictable or gets another rank later is noted and, if it is at most
    ``bound``, merged: so what the queue yields is exact.

    ``member``: per slot, the number of the list that it is on.
    """

    def __init__(
        self, table: SlotTable, ranks: NDArray[np.int64], member: NDArray[np.int8], number: int
    ) -> None:
        self._table = table
        self._number = number
        self._ranks = ranks
        self._member = member
        self.clear()

    def follow(self, ranks: NDArray[np.int64], member: NDArray[np.int8]) -> None:
        """The columns were moved, because the table became longer."""
        self._ranks = ranks
        self._member = member

    def note(self, slots: Slots) -> None:
        """Slots became evictable, or their ranks changed."""
        if self._bound is not None and len(slots):
            low = slots[self._ranks[slots] <= self._bound]
            if len(low):
                self._noted.append(low)
                self._num_noted += len(low)
            if self._num_noted > self._table.count:
                self.clear()  # nobody asks: looking at all once costs less than what was noted

    def clear(self) -> None:
        """Every chunk is gone."""
        self._queue = _NOTHING
        self._snapshot: NDArray[np.int64] = _NOTHING
        self._bound: int | None = None
        self._noted: list[Slots] = []
        self._num_noted = 0

    def smallest(self, count: int, blocked: Mask) -> Slots:
        """Return up to ``count`` evictable, unblocked slots, those of smallest rank first.

        Equal ranks are ordered by hash, then group.
        """
        if self._bound is not None:
            found = self._from_queue(count, blocked)
            if len(found) >= count:
                return found[:count]
        self._look_at_all(count + int(np.count_nonzero(blocked[: self._table.count])))
        return self._from_queue(count, blocked)[:count]

    def _from_queue(self, count: int, blocked: Mask) -> Slots:
        self._merge_noted()
        valid = self._valid(self._queue[: 2 * count + _MIN_QUEUE], blocked)
        if len(valid) < count and 2 * count + _MIN_QUEUE < len(self._queue):
            valid = self._valid(self._queue, blocked)
        # Beyond the bound, what was not looked at may be smaller.
        return valid

    def _valid(self, slots: Slots, blocked: Mask) -> Slots:
        good = self._evictable(slots)
        good &= self._ranks[slots] == self._snapshot[: len(slots)]
        kept = slots[good & ~blocked[slots]]
        self._forget_gone(good)
        return kept

    def _forget_gone(self, good: Mask) -> None:
        """Drop leading entries that left, were pinned or moved: they are noted when they return."""
        gone = int(good.argmax()) if good.any() else len(good)
        if gone:
            self._queue = self._queue[gone:]
            self._snapshot = self._snapshot[gone:]

    def _merge_noted(self) -> None:
        if not self._noted:
            return
        slots = np.concatenate([self._queue, *self._noted])
        self._noted = []
        self._num_noted = 0
        slots = np.unique(slots[self._evictable(slots)])
        slots = slots[self._ranks[slots] <= self._bound]
        self._sort(slots)

    def _look_at_all(self, count: int) -> None:
        size = max(_TIMES * count, self._table.count // _SHARE, _MIN_QUEUE)
        slots = self._below_guess(size)
        # A sample that misleads costs a second look, never a wrong victim.
        if not max(size // _SLACK, count) <= len(slots) <= size * _SLACK:
            slots = self._exactly(size)
        self._noted = []
        self._num_noted = 0
        self._sort(slots)

    def _below_guess(self, size: int) -> Slots:
        """Return every evictable slot up to a bound that a sample says leaves about ``size``."""
        total = self._table.count
        step = total // _SAMPLE
        if step <= 1:
            return _NOTHING
        sample = np.arange(0, total, step)
        ranks = self._ranks[sample[self._evictable(sample)]]
        place = size // step
        if place >= len(ranks):
            return _NOTHING
        self._bound = int(np.partition(ranks, place)[place])
        slots = np.flatnonzero(self._ranks[:total] <= self._bound)
        return slots[self._evictable(slots)]

    def _exactly(self, size: int) -> Slots:
        slots = np.arange(self._table.count)
        slots = slots[self._evictable(slots)]
        if size >= len(slots):
            self._bound = np.iinfo(np.int64).max
            return slots
        ranks = self._ranks[slots]
        self._bound = int(np.partition(ranks, size)[size])
        return slots[ranks <= self._bound]

    def _evictable(self, slots: Slots) -> Mask:
        table = self._table
        good: Mask = table.refs[slots] == READY
        good &= table.keyed[slots]
        good &= self._member[slots] == self._number
        return good

    def _sort(self, slots: Slots) -> None:
        ranks = self._ranks[slots]
        order = np.argsort(ranks, kind="stable")
        slots, ranks = slots[order], ranks[order]
        self._queue = self._break_ties(slots, ranks)
        self._snapshot = self._ranks[self._queue]

    def _break_ties(self, slots: Slots, ranks: NDArray[np.int64]) -> Slots:
        same = np.flatnonzero(ranks[1:] == ranks[:-1])
        if not len(same):
            return slots
        # Ranks are equal only where one request has several groups: few neighbours each.
        at = np.unique(np.concatenate([same, same + 1]))
        tied = slots[at]
        hashes = self._table.hashes(tied)
        groups = self._table.groups[tied].tolist()
        entries = list(zip(ranks[at].tolist(), hashes, groups, tied.tolist(), strict=True))
        entries.sort()
        slots = slots.copy()
        slots[at] = [entry[3] for entry in entries]
        return slots
