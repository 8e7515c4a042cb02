"""Slots of host memory and what is known of each, as arrays: no Python object per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
Mask = NDArray[np.bool_]

# States of a slot's reference count (``scheduler.md`` 6.1); positive = pinned so many times.
READY: Final = 0
WRITING: Final = -1
EMPTY: Final = -2

# Room beyond the last slot grows by this share, so that growth costs amortised constant time.
_GROWTH: Final = 1.5
_MIN_ROOM: Final = 64


class SlotTable:
    """Per-slot columns, all of length ``room``; the first ``count`` rows exist.

    ``refs``: reference count or state. ``groups``: KV cache group of the key. ``born``: insertion
    number. ``keyed``: whether a key leads to the slot; a pinned chunk that a reset forgot has none.
    ``retired``: the memory behind the slot is about to go; it is never given out again.
    ``version`` moves with whatever could make room or change which keys are there.
    """

    def __init__(self) -> None:
        self.count = 0
        self.version = 0
        # The last row is no slot's, ever: whoever looks up -1, no slot, finds it empty.
        self.refs: NDArray[np.int32] = np.full(1, EMPTY, dtype=np.int32)
        self.groups: NDArray[np.int16] = np.zeros(1, dtype=np.int16)
        self.born: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self.keyed: Mask = np.zeros(1, dtype=np.bool_)
        self.retired: Mask = np.zeros(1, dtype=np.bool_)
        self._hashes: NDArray[np.void] = np.zeros(1, dtype="V1")
        self._hash_bytes = 0
        self._clock = 0
        self._fresh = 0
        self._freed: list[int] = []
        self._num_retired = 0

    @property
    def room(self) -> int:
        """Rows allocated; other columns of a slot must be as long."""
        return len(self.refs)

    @property
    def num_free(self) -> int:
        """Slots that can be taken."""
        return self.count - self._fresh + len(self._freed)

    @property
    def freed(self) -> Sequence[int]:
        """Slots given back, the next one to be taken last."""
        return self._freed

    def extend(self, count: int) -> None:
        """Append ``count`` slots, numbered on from the last."""
        self.version += 1
        self.count += count
        if self.count < self.room:
            return
        more = max(int(self.count * _GROWTH), _MIN_ROOM) - self.room
        self.refs = np.concatenate([self.refs, np.full(more, EMPTY, dtype=np.int32)])
        self.groups = np.concatenate([self.groups, np.zeros(more, dtype=np.int16)])
        self.born = np.concatenate([self.born, np.zeros(more, dtype=np.int64)])
        self.keyed = np.concatenate([self.keyed, np.zeros(more, dtype=np.bool_)])
        self.retired = np.concatenate([self.retired, np.zeros(more, dtype=np.bool_)])
        self._hashes = np.concatenate([self._hashes, np.zeros(more, dtype=self._hashes.dtype)])

    def take(self, count: int) -> Slots:
        """Take free slots: fresh ones ascending, then freed ones last in, first out.

        ``count`` must not exceed ``num_free``.
        """
        fresh = min(count, self.count - self._fresh)
        taken = np.arange(self._fresh, self._fresh + fresh, dtype=np.int64)
        self._fresh += fresh
        rest = count - fresh
        if rest:
            again = self._freed[: -rest - 1 : -1]
            del self._freed[-rest:]
            taken = np.concatenate([taken, np.array(again, dtype=np.int64)])
        return taken

    def fill(self, slots: Slots, *, group: int, hashes: Sequence[bytes]) -> None:
        """Give taken slots their keys; their chunks are being written from now on."""
        size = len(slots)
        self.version += 1
        self._set_hashes(slots, hashes)
        self.groups[slots] = group
        self.refs[slots] = WRITING
        self.keyed[slots] = True
        self.born[slots] = np.arange(self._clock, self._clock + size)
        self._clock += size

    def give_back(self, slots: Slots) -> None:
        """Free slots; a retired one is empty from now on and never taken again."""
        self.version += 1
        self.refs[slots] = EMPTY
        self.keyed[slots] = False
        if self._num_retired:
            slots = slots[~self.retired[slots]]
        self._freed.extend(slots.tolist())

    def retire(self, low: int, high: int) -> None:
        """Never give out slots ``[low, high)`` again; empty ones are out at once."""
        if self._fresh < high:
            self._freed.extend(range(high - 1, self._fresh - 1, -1))
            self._fresh = max(self._fresh, high)
        self.retired[low:high] = True
        self._num_retired += high - low
        self._freed = [slot for slot in self._freed if not low <= slot < high]

    def clear(self, held: Slots) -> None:
        """Forget every chunk; slots ``held`` by others stay taken until they are given back."""
        self.version += 1
        refs = self.refs[held].copy()
        self.refs[:] = EMPTY
        self.keyed[:] = False
        self.refs[held] = refs
        self._freed = []
        self._fresh = 0
        if len(held) or self._num_retired:
            empty = (self.refs[: self.count] == EMPTY) & ~self.retired[: self.count]
            self._freed = np.flatnonzero(empty)[::-1].tolist()
            self._fresh = self.count

    @property
    def hash_bytes(self) -> int:
        """Length of every hash, 0 before the first one."""
        return self._hash_bytes

    def blob(self, slots: Slots) -> bytes:
        """Return the hashes of the keys of slots, concatenated."""
        return self._hashes.take(slots).tobytes()

    def hashes(self, slots: Slots) -> list[bytes]:
        """Return the hashes of the keys of slots."""
        found: list[bytes] = self._hashes[slots].tolist()
        return found

    def _set_hashes(self, slots: Slots, hashes: Sequence[bytes]) -> None:
        if not hashes:
            return
        if not self._hash_bytes:
            self._hash_bytes = len(hashes[0])
            self._hashes = np.zeros(self.room, dtype=f"V{self._hash_bytes}")
        self._hashes[slots] = np.frombuffer(b"".join(hashes), dtype=self._hashes.dtype)
