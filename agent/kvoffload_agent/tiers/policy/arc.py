"""Adaptive replacement: recent and frequent chunks, ghosts of both, and a target between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kvoffload_agent.tiers.policy.base import Find, KeyRun, Scratch
from kvoffload_agent.tiers.slots import READY, WRITING, Mask, Slots, SlotTable

Key = tuple[int, bytes]


class AdaptiveReplacement:
    """T1 (seen once), T2 (reused), ghosts B1 and B2, and the target size of T1.

    ``capacity``: bounds each ghost list and the target; it follows the table.
    """

    def __init__(self, *, table: SlotTable, find: Find) -> None:
        self._table = table
        self._find = find
        self._epoch = 0
        self.recent: dict[int, None] = {}
        self.frequent: dict[int, None] = {}
        self.recent_ghosts: dict[Key, None] = {}
        self.frequent_ghosts: dict[Key, None] = {}
        self.target = 0.0

    def grow(self) -> None:
        """Nothing to do: the lists hold what is resident."""

    def observe(self, scratch: Scratch, run: KeyRun, slots: Slots, seen: Mask) -> None:
        """Remember keys and, where a ghost says that one left too early, move the target."""
        scratch.enter(self._epoch)
        scratch.add(run, seen)
        missed = scratch.missed.setdefault(run.group, set())
        reused = scratch.reused.setdefault(run.group, set())
        own = scratch.inserted.get(run.group, ())
        for at in np.flatnonzero(seen).tolist()[::-1]:
            key = run.hashes[at]
            if slots[at] >= 0:
                if key not in own:
                    reused.add(key)
            elif key not in missed:
                missed.add(key)
                self._ghost_hit((run.group, key))

    def insert(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Put new chunks at the recent end of T1."""
        scratch.enter(self._epoch)
        scratch.inserted.setdefault(run.group, set()).update(run.hashes)
        self.recent.update(dict.fromkeys(slots.tolist()))
        for key in run.hashes:
            self.recent_ghosts.pop((run.group, key), None)
            self.frequent_ghosts.pop((run.group, key), None)

    def released(self, slots: Slots) -> None:
        """Nothing to do: the lists are looked at when a victim is wanted."""

    def victims(self, count: int, *, blocked: Mask) -> Slots | None:
        """Take from T1 while it is at least its target, else from T2, else from the other."""
        recent = self._evictable(self.recent, blocked)
        frequent = self._evictable(self.frequent, blocked)
        size = len(self.recent)
        chosen = []
        for _ in range(count):
            victim = None
            if size >= int(self.target):
                victim = next(recent, None)
                if victim is not None:
                    size -= 1
            if victim is None:
                victim = next(frequent, None)
            if victim is None:
                victim = next(recent, None)
                if victim is None:
                    return None
                size -= 1
            chosen.append(victim)
        return np.array(chosen, dtype=np.int64)

    def evict(self, slots: Slots) -> None:
        """Turn chunks into ghosts."""
        for slot, key in zip(slots.tolist(), self._keys(slots), strict=True):
            if slot in self.recent:
                del self.recent[slot]
                self.recent_ghosts[key] = None
            else:
                del self.frequent[slot]
                self.frequent_ghosts[key] = None
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            excess = len(ghosts) - self._table.count
            if excess > 0:
                for key in list(ghosts)[:excess]:
                    del ghosts[key]

    def drop(self, slots: Slots) -> None:
        """Forget chunks without a ghost: they were never there to be read."""
        for slot in slots.tolist():
            self.recent.pop(slot, None)
            self.frequent.pop(slot, None)

    def touch(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Last key first: a ready T1 key moves to T2, a T2 key is most recent, a ghost adapts."""
        scratch.enter(self._epoch)
        for slot, key in zip(slots.tolist()[::-1], list(run.hashes)[::-1], strict=True):
            if slot >= 0:
                self._use(slot, reused=self._table.refs[slot] != WRITING)
            else:
                self._ghost_hit((run.group, key))

    def finish(self, scratch: Scratch) -> None:
        """Refresh what the request inserted and promote what it reused, its head last."""
        scratch.enter(self._epoch)
        slots, keys = scratch.last_to_first(self._find)
        for slot, (group, key) in zip(slots.tolist(), keys, strict=True):
            if slot < 0:
                continue
            if key in scratch.reused.get(group, ()):
                self._use(slot, reused=True)
            elif key in scratch.inserted.get(group, ()):
                self._use(slot, reused=False)

    def reset(self) -> None:
        """Forget chunks, ghosts, target and observations."""
        self._epoch += 1
        self.recent = {}
        self.frequent = {}
        self.recent_ghosts = {}
        self.frequent_ghosts = {}
        self.target = 0.0

    def _use(self, slot: int, *, reused: bool) -> None:
        if slot in self.frequent:
            del self.frequent[slot]
            self.frequent[slot] = None
            return
        del self.recent[slot]
        if reused:
            self.frequent[slot] = None
        else:
            self.recent[slot] = None

    def _ghost_hit(self, key: Key) -> None:
        recent, frequent = self.recent_ghosts, self.frequent_ghosts
        if key in recent:
            step = max(1.0, len(frequent) / len(recent))
            self.target = min(self.target + step, float(self._table.count))
            del recent[key]
            recent[key] = None
        elif key in frequent:
            step = max(1.0, len(recent) / len(frequent))
            self.target = max(self.target - step, 0.0)
            del frequent[key]
            frequent[key] = None

    def _evictable(self, slots: Iterable[int], blocked: Mask) -> Iterator[int]:
        refs = self._table.refs
        return (slot for slot in slots if not blocked[slot] and refs[slot] == READY)

    def _keys(self, slots: Slots) -> list[Key]:
        groups = self._table.groups[slots].tolist()
        return list(zip(groups, self._table.hashes(slots), strict=True))
