"""Adaptive replacement: recent and frequent chunks, ghosts of both, and a target between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from kvoffload_agent.tiers.policy.base import Find, KeyRun, Scratch
from kvoffload_agent.tiers.slots import READY, WRITING, Mask, Slots, SlotTable

Key = tuple[int, bytes]

# Looked at together for victims: a step's store has about as many chunks.
_BATCH: Final = 1024
_GROUP_BYTES: Final = 2


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
        self.recent_ghosts: dict[bytes, None] = {}
        self.frequent_ghosts: dict[bytes, None] = {}
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
        hashes = run.hashes
        reused.update(hashes[i] for i in _where(seen & (slots >= 0)) if hashes[i] not in own)
        absent = [hashes[i] for i in _where(seen & (slots < 0)) if hashes[i] not in missed]
        missed.update(absent)
        recent, frequent = self.recent_ghosts, self.frequent_ghosts
        if recent or frequent:
            ghosts = [k for k in _ghosts(run.group, absent) if k in recent or k in frequent]
            for key in ghosts[::-1]:
                self._ghost_hit(key)

    def insert(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Put new chunks at the recent end of T1."""
        scratch.enter(self._epoch)
        scratch.inserted.setdefault(run.group, set()).update(run.hashes)
        self.recent.update(dict.fromkeys(slots.tolist()))
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            if ghosts:
                for key in _ghosts(run.group, run.hashes):
                    if key in ghosts:
                        del ghosts[key]

    def released(self, slots: Slots) -> None:
        """Nothing to do: the lists are looked at when a victim is wanted."""

    def victims(self, count: int, *, blocked: Mask) -> Slots | None:
        """Take from T1 while it is at least its target, else from T2, else from the other."""
        recent = self._evictable(self.recent, blocked)
        frequent = self._evictable(self.frequent, blocked)
        size = len(self.recent)
        if size - count >= int(self.target):
            first = list(islice(recent, count))
            if len(first) == count:
                return np.array(first, dtype=np.int64)
            recent = iter(first)  # all that there are
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
        recent, frequent = self.recent, self.frequent
        for slot, key in zip(slots.tolist(), self._keys(slots), strict=True):
            if slot in recent:
                del recent[slot]
                self.recent_ghosts[key] = None
            else:
                del frequent[slot]
                self.frequent_ghosts[key] = None
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            for key in list(islice(ghosts, max(len(ghosts) - self._table.count, 0))):
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
                self._ghost_hit(_ghosts(run.group, [key])[0])

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

    def _ghost_hit(self, key: bytes) -> None:
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
        rest = iter(slots)
        while len(batch := np.fromiter(islice(rest, _BATCH), dtype=np.int64)):
            good = self._table.refs[batch] == READY
            good &= ~blocked[batch]
            yield from batch[good].tolist()

    def _keys(self, slots: Slots) -> list[bytes]:
        groups, hashes = self._table.groups[slots], self._table.hashes(slots)
        if len(slots) and (groups == groups[0]).all():
            return _ghosts(int(groups[0]), hashes)
        return [
            _ghosts(group, [key])[0] for group, key in zip(groups.tolist(), hashes, strict=True)
        ]


def key_of(ghost: bytes) -> Key:
    """Return the key that a ghost was."""
    return int.from_bytes(ghost[-_GROUP_BYTES:], "big"), ghost[:-_GROUP_BYTES]


def _ghosts(group: int, hashes: Sequence[bytes]) -> list[bytes]:
    """Return keys as bytes, which the collector does not look at."""
    end = group.to_bytes(_GROUP_BYTES, "big")
    return [key + end for key in hashes]


def _where(mask: Mask) -> list[int]:
    found: list[int] = mask.nonzero()[0].tolist()
    return found
