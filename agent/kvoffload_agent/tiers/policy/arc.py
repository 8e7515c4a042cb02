"""Adaptive replacement: recent and frequent chunks, ghosts of both, and a target between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.policy.base import Find, KeyRun, Scratch
from kvoffload_agent.tiers.policy.queue import RankQueue
from kvoffload_agent.tiers.slots import WRITING, Mask, Slots, SlotTable

Key = tuple[int, bytes]

# The lists that a slot can be on.
_NONE, _RECENT, _FREQUENT = 0, 1, 2
_GROUP_BYTES: Final = 2


class AdaptiveReplacement:
    """T1 (seen once), T2 (reused), ghosts B1 and B2, and the target size of T1.

    A slot's place in its list is when it was last moved to its end. The capacity, which bounds each
    ghost list and the target, follows the table.
    """

    def __init__(self, *, table: SlotTable, find: Find) -> None:
        self._table = table
        self._find = find
        self._epoch = 0
        self._moved: NDArray[np.int64] = np.zeros(table.room, dtype=np.int64)
        self._list: NDArray[np.int8] = np.zeros(table.room, dtype=np.int8)
        self._recent = RankQueue(table, self._moved, self._list, _RECENT)
        self._frequent = RankQueue(table, self._moved, self._list, _FREQUENT)
        self._clock = 0
        self._num_recent = 0
        self.recent_ghosts: dict[bytes, None] = {}
        self.frequent_ghosts: dict[bytes, None] = {}
        self.target = 0.0

    def grow(self) -> None:
        """Follow the slot table, which has become longer."""
        more = self._table.room - len(self._moved)
        self._moved = np.concatenate([self._moved, np.zeros(more, dtype=np.int64)])
        self._list = np.concatenate([self._list, np.zeros(more, dtype=np.int8)])
        self._recent.follow(self._moved, self._list)
        self._frequent.follow(self._moved, self._list)

    @property
    def recent(self) -> Slots:
        """Slots of T1, first to leave first."""
        return self._ordered(_RECENT)

    @property
    def frequent(self) -> Slots:
        """Slots of T2, first to leave first."""
        return self._ordered(_FREQUENT)

    def _ordered(self, number: int) -> Slots:
        slots = np.flatnonzero(self._list == number)
        return slots[np.argsort(self._moved[slots])]

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
        self._list[slots] = _RECENT
        self._num_recent += len(slots)
        self._move(slots)
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            if ghosts:
                for key in _ghosts(run.group, run.hashes):
                    if key in ghosts:
                        del ghosts[key]

    def released(self, slots: Slots) -> None:
        """Chunks became readable, or are read no longer."""
        self._recent.note(slots)
        self._frequent.note(slots)

    def victims(self, count: int, *, blocked: Mask) -> Slots | None:
        """Take from T1 while it is at least its target, else from T2, else from the other."""
        first = min(count, max(self._num_recent - int(self.target) + 1, 0))
        if first:
            recent = self._recent.smallest(first, blocked)
            if len(recent) == count:
                return recent
            first = len(recent)
        frequent = self._frequent.smallest(count - first, blocked)
        rest = count - len(frequent)
        chosen = self._recent.smallest(rest, blocked)
        if len(chosen) < rest:
            return None
        return np.concatenate([chosen[:first], frequent, chosen[first:]])

    def evict(self, slots: Slots) -> None:
        """Turn chunks into ghosts."""
        recent = self._list[slots] == _RECENT
        self.recent_ghosts.update(dict.fromkeys(self._keys(slots[recent])))
        self.frequent_ghosts.update(dict.fromkeys(self._keys(slots[~recent])))
        self.drop(slots)
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            for key in list(islice(ghosts, max(len(ghosts) - self._table.count, 0))):
                del ghosts[key]

    def drop(self, slots: Slots) -> None:
        """Forget chunks without a ghost: they were never there to be read."""
        self._num_recent -= int(np.count_nonzero(self._list[slots] == _RECENT))
        self._list[slots] = _NONE

    def touch(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """Last key first: a ready T1 key moves to T2, a T2 key is most recent, a ghost adapts."""
        scratch.enter(self._epoch)
        hashes = run.hashes
        for key in _ghosts(run.group, [hashes[i] for i in _where(slots < 0)])[::-1]:
            self._ghost_hit(key)
        present = slots[slots >= 0][::-1]
        self._use(present, reused=self._table.refs[present] != WRITING)

    def finish(self, scratch: Scratch) -> None:
        """Refresh what the request inserted and promote what it reused, its head last."""
        scratch.enter(self._epoch)
        slots, keys = scratch.last_to_first(self._find)
        reused = [key in scratch.reused[group] for group, key in keys]
        own = [key in scratch.inserted.get(group, ()) for group, key in keys]
        promoted = np.array(reused, dtype=np.bool_)
        used = (slots >= 0) & (promoted | np.array(own, dtype=np.bool_))
        self._use(slots[used], reused=promoted[used])

    def used_at(self, slots: Slots) -> Slots:
        """Return when each was last moved to the end of its list; both lists share a clock."""
        return self._moved[slots]

    def reset(self) -> None:
        """Forget chunks, ghosts, target and observations."""
        self._epoch += 1
        self._list[:] = _NONE
        self._num_recent = 0
        self._recent.clear()
        self._frequent.clear()
        self.recent_ghosts = {}
        self.frequent_ghosts = {}
        self.target = 0.0

    def _use(self, slots: Slots, *, reused: Mask) -> None:
        """Move slots to the end of their list, in order; reused ones of T1 to that of T2."""
        promoted = slots[reused & (self._list[slots] == _RECENT)]
        self._list[promoted] = _FREQUENT
        self._num_recent -= len(promoted)
        self._move(slots)

    def _move(self, slots: Slots) -> None:
        self._moved[slots] = np.arange(self._clock, self._clock + len(slots))
        self._clock += len(slots)
        self._recent.note(slots)
        self._frequent.note(slots)

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
