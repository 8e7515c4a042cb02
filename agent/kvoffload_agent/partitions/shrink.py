"""Which segments leave when host memory is given back: a pure decision.

Memory comes back in whole segments: they are sealed, so nothing is ever punched out of one that an
engine has mapped or registered, and a segment's chunks leave together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A row of segments that may leave: ``bytes`` of all of them.

    ``heat``: how recently its chunks were used, on average, on a clock of its holder; an empty
    slot counts 0, so what holds nothing is coldest.
    """

    bytes: int
    heat: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A partition in use: ``kept`` bytes stay so far, those of ``rows`` (oldest first) may leave.

    ``kept`` may be more than all rows have: what is on its way to the engines can't leave yet.
    """

    kept: int
    rows: Sequence[Candidate]


def plan(holders: Sequence[Holder], excess: int) -> list[tuple[int, int]]:
    """Return (holder, row) of what leaves, in order, until at least ``excess`` bytes do.

    The holder that keeps most gives first, so that a small partition is not emptied for a large
    one; clocks of two partitions can't be compared. Of its rows the coldest goes, of equally cold
    ones the newest. Everything goes if that is too little.
    """
    kept = [holder.kept for holder in holders]
    waiting = [_coldest_last(holder.rows) for holder in holders]
    chosen = []
    while excess > 0:
        giving = [number for number, rows in enumerate(waiting) if rows]
        if not giving:
            break
        largest = max(giving, key=lambda number: kept[number])
        row = waiting[largest].pop()
        taken = holders[largest].rows[row].bytes
        kept[largest] -= taken
        excess -= taken
        chosen.append((largest, row))
    return chosen


def _coldest_last(rows: Sequence[Candidate]) -> list[int]:
    return sorted(range(len(rows)), key=lambda row: (-rows[row].heat, row))
