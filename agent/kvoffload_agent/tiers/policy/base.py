"""What the host tier asks of an eviction policy, and what a policy remembers of a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from kvoffload_agent.tiers.slots import Mask, Slots

Find = Callable[[int, Sequence[bytes]], Slots]


@dataclass(slots=True, kw_only=True)
class KeyRun:
    """Keys of one group, in the order of the request.

    ``positions``: end of each key in the request's tokens; None = not known.
    """

    group: int
    hashes: Sequence[bytes]
    positions: Slots | None


@dataclass(slots=True)
class Scratch:
    """What a policy remembers of one request.

    ``rank``: the request's own place in the eviction order, None before its first insertion or
    observation. ``observed``: per group hash → position (-1 = not known), in order of
    observation. ``inserted``: per group, keys that this request brought in. ``reused``: those that
    it found ready and had not brought in itself. ``missed``: those that it offered and were absent.
    ``epoch``: the reset before which nothing counts.
    """

    epoch: int = 0
    rank: int | None = None
    observed: dict[int, dict[bytes, int]] = field(default_factory=dict)
    inserted: dict[int, set[bytes]] = field(default_factory=dict)
    reused: dict[int, set[bytes]] = field(default_factory=dict)
    missed: dict[int, set[bytes]] = field(default_factory=dict)

    def enter(self, epoch: int) -> None:
        """Forget what was before a reset."""
        if self.epoch != epoch:
            self.epoch = epoch
            self.rank = None
            self.observed = {}
            self.inserted = {}
            self.reused = {}
            self.missed = {}

    def add(self, run: KeyRun, seen: Mask) -> Mask:
        """Remember keys as observed; return which of those ``seen`` are so for the first time."""
        table = self.observed.setdefault(run.group, {})
        hashes = run.hashes
        if table:
            new = np.fromiter((key not in table for key in hashes), np.bool_, len(hashes)) & seen
        else:
            new = seen
        positions = [-1] * len(hashes) if run.positions is None else run.positions.tolist()
        if new.all():
            table.update(zip(hashes, positions, strict=True))
        else:
            for at in np.flatnonzero(new).tolist():
                table[hashes[at]] = positions[at]
        return new

    def last_to_first(self, find: Find) -> tuple[Slots, list[tuple[int, bytes]]]:
        """Return slots (-1 = absent) and keys, those that should leave first at the front.

        All in order of position, of equal positions the higher group first, if all positions are
        known; else group by group (``scheduler.md`` 6.5).
        """
        groups = sorted(group for group, table in self.observed.items() if table)
        if not groups:
            return np.empty(0, dtype=np.int64), []
        slots, positions, keys = [], [], []
        for group in groups:
            table = self.observed[group]
            hashes = list(table)
            at = np.fromiter(table.values(), np.int64, len(table))
            if (at >= 0).all():
                order = np.argsort(at, kind="stable")
                hashes = [hashes[i] for i in order.tolist()]
                at = at[order]
            slots.append(find(group, hashes))
            positions.append(at)
            keys += [(group, key) for key in hashes]
        found, ends = np.concatenate(slots), np.concatenate(positions)
        if len(groups) > 1 and (ends >= 0).all():
            order = np.argsort(ends, kind="stable")
            found = found[order]
            keys = [keys[i] for i in order.tolist()]
        return found[::-1], keys[::-1]


class EvictionPolicy(Protocol):
    """Order of eviction. Slots are those of the host tier's table."""

    def grow(self) -> None:
        """Follow the slot table, which has become longer."""

    def observe(self, scratch: Scratch, run: KeyRun, slots: Slots, seen: Mask) -> None:
        """A request loads or offers keys; those ``seen`` count.

        ``slots``: of each key, -1 where it is absent.
        """

    def insert(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Keys of a request were given slots (already in the table, being written)."""

    def victims(self, count: int, *, blocked: Mask) -> Slots | None:
        """Return the ``count`` slots that leave first, in order, or None if there are fewer.

        ``blocked``: per slot, whether it has to stay. Nothing is changed.
        """

    def released(self, slots: Slots) -> None:
        """Chunks became evictable: readable, or read no longer."""

    def evict(self, slots: Slots) -> None:
        """These victims leave; their keys are still in the table."""

    def drop(self, slots: Slots) -> None:
        """These chunks were never completed, or their memory goes; keys still in the table."""

    def touch(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Keys of a request were used, outside any load or offer."""

    def finish(self, scratch: Scratch) -> None:
        """A request ended: what it observed is reordered."""

    def used_at(self, slots: Slots) -> Slots:
        """Return when resident chunks were last used, on a clock of the policy's own."""

    def reset(self) -> None:
        """Every chunk is gone."""
