"""Key → slot, without a Python object per key. A key is (group, hash)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.slots import Slots, SlotTable

Words = NDArray[np.uint64]
Prints = NDArray[np.uint32]

# Fingerprints of a row, half a cache line: one look shows whether a key can be in it.
_WIDTH: Final = 8
_LOG_WIDTH: Final = _WIDTH.bit_length() - 1
# With 1 to 2 keys in a row on average, less than 1 in 10,000 finds its row full.
_KEYS_PER_ROW: Final = 2
_MIN_ROWS: Final = 16
# 2^64 divided by the golden ratio: its multiples spread any words over the highest bits.
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
# Any odd number: moves the rows and the fingerprints of a group's keys.
_SALT: Final = 0xD1342543DE82EF95
_WRAP: Final = 1 << 64
# The shortest digest that an engine uses, in bytes: xxh3_128.
_MIN_DIGEST: Final = 16
_ONE: Final = np.uint32(1)


class Index:
    """A hash table in arrays, whose keys are those of a slot table.

    A key's row follows from the first 8 bytes of its hash and from its group. Whoever finds its row
    full, or its fingerprint taken, is kept in a dict, and the row marked. What is found is compared
    as a whole, so that a hit is exact. Hashes that are asked for together have one length.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._spilled: dict[bytes, int] = {}
        self._build(_MIN_ROWS)

    # --- asking ------------------------------------------------------------------------------

    def find(self, group: int, hashes: Sequence[bytes]) -> Slots:
        """Return the slot of each hash, -1 where there is none."""
        blob = b"".join(hashes)
        size, count = self._table.hash_bytes, len(hashes)
        if not size or len(blob) != size * count:
            return self._find_odd(group, hashes)
        mixed = _mix(words_of(blob, size), size)
        if group:
            mixed += np.uint64(group * _SALT % _WRAP)
        row = (mixed >> self._shift).view(np.int64)
        prints = mixed.view(np.uint32)[::2] | _ONE
        equal = self._prints.take(row, axis=0) == prints[:, None]
        hits = equal.ravel().nonzero()[0]
        if len(hits) == count:
            at = (row << _LOG_WIDTH) + (hits & (_WIDTH - 1))
            slots: Slots = self._slots.take(at).astype(np.int64)
            if self._table.blob(slots) == blob:
                return slots
        found = np.full(count, -1, dtype=np.int64)
        if len(hits):
            self._settle(blob, row, hits, found)
        if self._spilled:
            for i in np.flatnonzero(self._marked[row] & (found < 0)).tolist():
                found[i] = self._spilled.get(_packed(group, hashes[i]), -1)
        return found

    def _settle(self, blob: bytes, row: Slots, hits: Slots, found: Slots) -> None:
        """Enter the slots of candidates whose whole keys are equal."""
        which = hits >> _LOG_WIDTH
        at = (row[which] << _LOG_WIDTH) + (hits & (_WIDTH - 1))
        slots = self._slots.take(at).astype(np.int64)
        size = self._table.hash_bytes
        asked = np.frombuffer(blob, dtype=f"V{size}").take(which).tobytes()
        there = self._table.blob(slots)
        if asked != there:
            differ = np.frombuffer(asked, np.uint8) != np.frombuffer(there, np.uint8)
            good = ~differ.reshape(-1, size).any(axis=1)
            which, slots = which[good], slots[good]
        found[which] = slots

    def _find_odd(self, group: int, hashes: Sequence[bytes]) -> Slots:
        """Hashes of another length than those that are here are not here."""
        found = np.full(len(hashes), -1, dtype=np.int64)
        size = self._table.hash_bytes
        fit = [i for i, key in enumerate(hashes) if len(key) == size] if size else []
        if fit:
            found[fit] = self.find(group, [hashes[i] for i in fit])
        return found

    # --- changing ----------------------------------------------------------------------------

    def insert(self, slots: Slots) -> None:
        """Add the keys that slots have in the table, and that are not here."""
        while len(self._prints) * _KEYS_PER_ROW < self._table.count:
            self._grow()
        self._place(self._mix_of(slots), slots)

    def _place(self, mixed: Words, slots: Slots) -> None:
        rows, prints = self._row(mixed), _fingerprints(mixed)
        left = np.arange(len(slots))
        while len(left):
            row = rows[left]
            # Of several for one row one is placed at a time.
            self._owner[row] = left
            first = self._owner[row] == left
            self._place_once(row[first], prints[left[first]], slots[left[first]])
            left = left[~first]

    def _place_once(self, row: Slots, prints: Prints, slots: Slots) -> None:
        """Place keys of different rows."""
        there = self._prints.take(row, axis=0)
        free = there == 0
        fits = free.any(axis=1) & (there != prints[:, None]).all(axis=1)
        at = (row << _LOG_WIDTH) + free.argmax(axis=1)
        self._prints.reshape(-1)[at[fits]] = prints[fits]
        self._slots[at[fits]] = slots[fits]
        if not fits.all():
            self._marked[row[~fits]] = True
            self._spill(slots[~fits])

    def _spill(self, slots: Slots) -> None:
        self._spilled.update(zip(self._packed_keys(slots), slots.tolist(), strict=True))

    def _packed_keys(self, slots: Slots) -> list[bytes]:
        groups = self._table.groups[slots].tolist()
        return list(map(_packed, groups, self._table.hashes(slots)))

    def remove(self, slots: Slots) -> None:
        """Remove the keys that slots have in the table; all of them are here."""
        mixed = self._mix_of(slots)
        row = self._row(mixed)
        equal = self._prints.take(row, axis=0) == _fingerprints(mixed)[:, None]
        hits = equal.ravel().nonzero()[0]
        which = hits >> _LOG_WIDTH
        at = (row[which] << _LOG_WIDTH) + (hits & (_WIDTH - 1))
        mine = self._slots.take(at) == slots[which]
        self._prints.reshape(-1)[at[mine]] = 0
        if np.count_nonzero(mine) < len(slots):
            for key in self._packed_keys(np.delete(slots, which[mine])):
                del self._spilled[key]

    def clear(self) -> None:
        """Remove every key."""
        self._prints[:] = 0
        self._marked[:] = False
        self._spilled = {}

    # --- the arrays --------------------------------------------------------------------------

    def _build(self, rows: int) -> None:
        # 0 is nobody's fingerprint.
        self._prints: Prints = np.zeros((rows, _WIDTH), dtype=np.uint32)
        self._slots: NDArray[np.int32] = np.zeros(rows * _WIDTH, dtype=np.int32)
        self._marked = np.zeros(rows, dtype=np.bool_)
        # Of use within ``_place`` only; what is in it outside means nothing.
        self._owner = np.empty(rows, dtype=np.int32)
        self._shift = np.uint64(64 - (rows.bit_length() - 1))

    def _grow(self) -> None:
        here = self._slots[self._prints.ravel() != 0].astype(np.int64)
        spilled = np.fromiter(self._spilled.values(), np.int64, len(self._spilled))
        slots = np.concatenate([here, spilled])
        self._build(2 * len(self._prints))
        self._spilled = {}
        self._place(self._mix_of(slots), slots)

    def _row(self, mixed: Words) -> Slots:
        return (mixed >> self._shift).view(np.int64)

    def _mix_of(self, slots: Slots) -> Words:
        size = self._table.hash_bytes
        mixed = _mix(words_of(self._table.blob(slots), size), size)
        mixed += self._table.groups[slots].astype(np.uint64) * np.uint64(_SALT)
        return mixed


def _mix(words: Words, size: int) -> Words:
    """Spread the words of hashes of ``size`` bytes; a short one may be no hash but a number."""
    if size < _MIN_DIGEST:
        # Small numbers differ in their last bytes only, which are the highest bits here.
        words = words ^ (words >> _HALF)
    return words * _GOLDEN


def _packed(group: int, key: bytes) -> bytes:
    """Return a dict's key that the collector does not look at."""
    return key + group.to_bytes(2, "big")


def _fingerprints(mixed: Words) -> Prints:
    """Return the lower half, which does not name the row."""
    return mixed.view(np.uint32)[::2] | _ONE


def words_of(blob: bytes, size: int) -> Words:
    """Return the first 8 bytes of each hash of ``size`` bytes, shorter ones with zeros behind."""
    if size % 8 == 0:
        words: Words = np.frombuffer(blob, dtype=np.uint64)[:: size // 8]
        return words
    given = np.frombuffer(blob, dtype=np.uint8).reshape(-1, size)
    padded = np.zeros((len(given), 8), dtype=np.uint8)
    padded[:, : min(size, 8)] = given[:, :8]
    return padded.view(np.uint64).ravel()
