"""Host memory: the primary tier, which every other passes through (``scheduler.md`` section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from kvoffload_agent.tiers.index import Index
from kvoffload_agent.tiers.policy.arc import AdaptiveReplacement
from kvoffload_agent.tiers.policy.base import KeyRun, Scratch
from kvoffload_agent.tiers.policy.lru import LeastRecentlyUsed
from kvoffload_agent.tiers.slots import EMPTY, READY, Mask, Slots, SlotTable
from kvoffload_agent.tiers.tracker import OfferTracker

Key = tuple[int, bytes]

EvictionPolicyName = Literal["lru", "arc"]

# Below this, a threshold is the same as none: every offer is the first one.
_MIN_THRESHOLD: Final = 2
DEFAULT_TRACKER_SIZE: Final = 64_000

_NOTHING: Final[Slots] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """``store_threshold``: offers of a key before it is stored; below 2 every offer counts."""

    eviction_policy: EvictionPolicyName = "lru"
    store_threshold: int = 0
    max_tracker_size: int = DEFAULT_TRACKER_SIZE
    events: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Keys that became readable (``stored``) or are no longer there; ``failed``: never were."""

    stored: bool
    keys: Sequence[Key]
    failed: bool = False


@dataclass(slots=True, kw_only=True)
class Grant:
    """Answer to an offer. ``slots``: per run, the new slot of each key, -1 = not to be stored.

    ``present``: per run, the slot of each key that was there before, -1 = it was not.
    """

    slots: list[Slots]
    present: list[Slots]
    evicted: list[Key] = field(default_factory=list)

    def written(self) -> Slots:
        """Return all slots to be written."""
        taken = [slots[slots >= 0] for slots in self.slots]
        return np.concatenate(taken) if taken else _NOTHING


class DuplicateKeyError(Exception):
    """An engine's hashes repeat within a request; the engine's side must be mended."""


class HostTier:
    """Which chunk is where, who reads or writes it, and which one leaves for another."""

    def __init__(self, config: HostConfig) -> None:
        self.table = SlotTable()
        self.index = Index(self.table)
        self.policy: LeastRecentlyUsed | AdaptiveReplacement
        if config.eviction_policy == "arc":
            self.policy = AdaptiveReplacement(table=self.table, find=self.index.find)
        else:
            self.policy = LeastRecentlyUsed(table=self.table, find=self.index.find)
        self.tracker: OfferTracker | None = None
        if config.store_threshold >= _MIN_THRESHOLD:
            self.tracker = OfferTracker(
                threshold=config.store_threshold, size=config.max_tracker_size
            )
        self.evicted = 0
        """Chunks that left for others, since the pool was made."""
        self._blocked: Mask = np.zeros(self.table.room, dtype=np.bool_)
        self._events: list[Event] | None = [] if config.events else None

    def add_slots(self, count: int) -> None:
        """Append empty slots."""
        self.table.extend(count)
        self.policy.grow()

    def retire_slots(self, low: int, high: int) -> int:
        """Empty slots ``[low, high)`` for good; return how many are still read or written.

        Ready chunks are evicted at once. Ask again to see whether the others have ended.
        """
        refs = self.table.refs[low:high]
        ready = np.flatnonzero((refs == READY) & self.table.keyed[low:high]) + low
        self.table.retire(low, high)
        if len(ready):
            self._remove(ready, evicted=False)
        return int(np.count_nonzero(self.table.refs[low:high] != EMPTY))

    def heats(self, spans: Sequence[tuple[int, int]]) -> list[float]:
        """Return the mean recency of each span of slots (see ``PartitionPool.heats``)."""
        keyed = np.flatnonzero(self.table.keyed[: self.table.count])
        heat = np.zeros(self.table.count, dtype=np.int64)
        if len(keyed):
            used = self.policy.used_at(keyed)
            heat[keyed] = used - used.min() + 1
        return [float(heat[low:high].mean()) for low, high in spans]

    # --- offers ------------------------------------------------------------------------------

    def offer(self, scratch: Scratch, runs: list[KeyRun], *, blocked: Slots) -> Grant | None:
        """Offer keys for storing; None = no room, and then nothing but what was observed changed.

        Args:
            scratch: Of the request that offers.
            runs: Each key at most once.
            blocked: Slots that may not be evicted for this, besides those of the offered keys.

        Raises:
            DuplicateKeyError: a key is there twice; nothing changed.
        """
        for run in runs:
            if len(set(run.hashes)) < len(run.hashes):
                raise DuplicateKeyError(f"group {run.group}: a key is offered twice")
        counted = self.tracker.count(runs) if self.tracker else None
        present = [self.index.find(run.group, run.hashes) for run in runs]
        new = [slots < 0 for slots in present]
        if counted is not None:
            new = [mask & np.array(ok, np.bool_) for mask, ok in zip(new, counted, strict=True)]
        refs = self.table.refs
        # From the last key to the first, as far as an order matters to a policy.
        for run, slots, mask in list(zip(runs, present, new, strict=True))[::-1]:
            seen = mask | ((slots >= 0) & (refs[slots] >= READY))
            self.policy.observe(scratch, run, slots, seen)
        needed = sum(int(np.count_nonzero(mask)) for mask in new)
        evicted: list[Key] = []
        lacking = needed - self.table.num_free
        if lacking > 0:
            victims = self._victims(lacking, [blocked, *(slots[slots >= 0] for slots in present)])
            if victims is None:
                return None
            evicted = self._remove(victims, evicted=True)
        taken = self.table.take(needed)
        granted = []
        for run, mask in zip(runs, new, strict=True):
            size = int(np.count_nonzero(mask))
            mine, taken = taken[:size], taken[size:]
            granted.append(self._place(scratch, run, mask, mine))
        return Grant(slots=granted, present=present, evicted=evicted)

    def _victims(self, count: int, blocked: Sequence[Slots]) -> Slots | None:
        if len(self._blocked) < self.table.room:
            self._blocked = np.zeros(self.table.room, dtype=np.bool_)
        for slots in blocked:
            self._blocked[slots] = True
        victims = self.policy.victims(count, blocked=self._blocked)
        for slots in blocked:
            self._blocked[slots] = False
        return victims

    def _place(self, scratch: Scratch, run: KeyRun, mask: Mask, mine: Slots) -> Slots:
        slots = np.full(len(mask), -1, dtype=np.int64)
        if not len(mine):
            return slots
        slots[mask] = mine
        part = run
        if len(mine) < len(mask):
            at = np.flatnonzero(mask).tolist()
            part = KeyRun(
                group=run.group,
                hashes=[run.hashes[i] for i in at],
                positions=None if run.positions is None else run.positions[mask],
            )
        self.table.fill(mine, group=run.group, hashes=part.hashes)
        self.index.insert(mine)
        self.policy.insert(scratch, part, mine)
        return slots

    def written(self, slots: Slots) -> None:
        """Chunks are complete: readable, and evictable."""
        self._release_forgotten(slots)
        slots = slots[self.table.keyed[slots]]
        self.table.version += 1
        self.table.refs[slots] = READY
        self.policy.released(slots)
        if self._events is not None and len(slots):
            self._events.append(Event(stored=True, keys=self.keys(slots)))
        self._leave(slots)

    def failed(self, slots: Slots) -> None:
        """Chunks were not written: forget them."""
        self._release_forgotten(slots)
        slots = slots[self.table.keyed[slots]]
        if len(slots):
            keys = self.keys(slots)
            self.policy.drop(slots)
            self._unmap(slots)
            if self._events is not None:
                self._events.append(Event(stored=False, keys=keys, failed=True))

    # --- reading -----------------------------------------------------------------------------

    def observe(self, scratch: Scratch, run: KeyRun, slots: Slots) -> None:
        """A request is about to load keys."""
        self.policy.observe(scratch, run, slots, np.ones(len(slots), dtype=np.bool_))

    def pin(self, slots: Slots) -> None:
        """Keep ready chunks while they are read. A slot may be given more than once."""
        np.add.at(self.table.refs, slots, 1)

    def unpin(self, slots: Slots) -> None:
        """Undo one ``pin``."""
        self.table.version += 1
        np.subtract.at(self.table.refs, slots, 1)
        self.policy.released(slots)
        done = slots[(self.table.refs[slots] == READY) & ~self.table.keyed[slots]]
        if len(done):
            self.table.give_back(np.unique(done))
        self._leave(slots)

    def discard(self, slots: Slots) -> None:
        """Forget ready chunks that turned out to be unreadable; pinned ones stay."""
        bad = np.unique(slots[(self.table.refs[slots] == READY) & self.table.keyed[slots]])
        if len(bad):
            self._remove(bad, evicted=False)

    def _leave(self, slots: Slots) -> None:
        """Empty those of retired memory: as a victim such a slot would make no room."""
        retired = slots[self.table.retired[slots] & (self.table.refs[slots] == READY)]
        if len(retired):
            self._remove(np.unique(retired), evicted=False)

    # --- the rest ----------------------------------------------------------------------------

    def keys(self, slots: Slots) -> list[Key]:
        """Return the keys of slots."""
        groups = self.table.groups[slots].tolist()
        return list(zip(groups, self.table.hashes(slots), strict=True))

    def reset(self, *, held: Slots) -> None:
        """Forget every chunk. Slots ``held`` are read or written by others: freed when done."""
        self.index.clear()
        self.table.clear(held)
        self.policy.reset()

    def take_events(self) -> list[Event]:
        """Return what happened since the last call."""
        if self._events is None:
            return []
        events, self._events = self._events, []
        return [event for event in map(self._still_true, events) if event.keys]

    def _still_true(self, event: Event) -> Event:
        """Leave out failed keys that somebody stores anew: they must not look removed."""
        if not event.failed:
            return event
        gone = [key for key in event.keys if self.index.find(key[0], [key[1]])[0] < 0]
        return Event(stored=False, keys=gone, failed=True)

    def _remove(self, slots: Slots, *, evicted: bool) -> list[Key]:
        keys = self.keys(slots)
        if evicted:
            self.policy.evict(slots)
            self.evicted += len(slots)
        else:
            self.policy.drop(slots)
        self._unmap(slots)
        if self._events is not None:
            self._events.append(Event(stored=False, keys=keys))
        return keys

    def _unmap(self, slots: Slots) -> None:
        self.index.remove(slots)
        self.table.give_back(slots)

    def _release_forgotten(self, slots: Slots) -> None:
        """Free slots whose key a reset removed while they were written."""
        forgotten = slots[~self.table.keyed[slots]]
        if len(forgotten):
            self.table.give_back(forgotten)
