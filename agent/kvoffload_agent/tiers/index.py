"""Key → slot, without a Python object per key. A key is (group, hash)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_agent.tiers.slots import Slots, SlotTable

Words = NDArray[np.uint64]
Rows = NDArray[np.uint32]

# A row is one cache line: so many fingerprints, then the slot of each.
_WIDTH: Final = 8
# Rows per slot: with 2 to 4 keys in a row on average, less than 2 in 100 find theirs full.
_KEYS_PER_ROW: Final = 4
_MIN_ROWS: Final = 16
# 2^64 divided by the golden ratio: its multiples spread any words over the highest bits.
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FINGERPRINT_BITS: Final = 20


class Index:
    """A hash table in one array, whose keys are those of a slot table.

    A key's row follows from the first 8 bytes of its hash and from its group. Whoever finds its row
    full, or its fingerprint taken, is kept in a dict, and the row marked. What is found is compared
    as a whole, so that a hit is exact.
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._spilled: dict[bytes, int] = {}
        self._build(_MIN_ROWS)

    # --- asking ------------------------------------------------------------------------------

    def find(self, group: int, hashes: Sequence[bytes]) -> Slots:
        """Return the slot of each hash, -1 where there is none."""
        table, blob = self._table, b"".join(hashes)
        size = table.hash_bytes
        if not size or len(blob) != size * len(hashes):
            return self._find_odd(group, hashes)
        mixed = self._mix(words_of(blob, size), group)
        at = mixed >> self._shift
        entries = self._rows.take(at, axis=0)
        equal = entries[:, :_WIDTH] == _fingerprints(mixed)[:, None]
        hits = np.flatnonzero(equal)
        slots = entries[:, _WIDTH:][hits >> _LOG_WIDTH, hits & (_WIDTH - 1)].astype(np.int64)
        if len(hits) == len(hashes) and table.blob(slots) == blob:
            return slots
        return self._settle(group, hashes, blob, at, hits >> _LOG_WIDTH, slots)

    def _settle(
        self,
        group: int,
        hashes: Sequence[bytes],
        blob: bytes,
        at: Words,
        which: Slots,
        slots: Slots,
    ) -> Slots:
        """Compare each candidate's whole key, and look for the others among those spilled."""
        size = self._table.hash_bytes
        asked = np.frombuffer(blob, dtype=np.uint8).reshape(-1, size)
        there = np.frombuffer(self._table.blob(slots), dtype=np.uint8).reshape(-1, size)
        good = (asked[which] == there).all(axis=1)
        found = np.full(len(hashes), -1, dtype=np.int64)
        found[which[good]] = slots[good]
        if self._spilled:
            for i in np.flatnonzero(self._marked[at] & (found < 0)).tolist():
                found[i] = self._spilled.get(_packed(group, hashes[i]), -1)
        return found

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
        while len(self._rows) * _KEYS_PER_ROW < self._table.count:
            self._grow()
        mixed = self._mix_of(slots)
        self._place(mixed >> self._shift, _fingerprints(mixed), slots)

    def _place(self, at: Words, prints: Rows, slots: Slots) -> None:
        left = np.arange(len(slots))
        while len(left):
            row, fingerprint = at[left], prints[left]
            # Of several for one row one is placed at a time.
            self._owner[row] = left
            first = self._owner[row] == left
            mine, row, fingerprint = left[first], row[first], fingerprint[first]
            entries = self._rows[row, :_WIDTH]
            free = entries == 0
            full = ~free.any(axis=1) | (entries == fingerprint[:, None]).any(axis=1)
            fits = ~full
            column = free.argmax(axis=1)[fits]
            self._rows[row[fits], column] = fingerprint[fits]
            self._rows[row[fits], column + _WIDTH] = slots[mine[fits]]
            if full.any():
                self._marked[row[full]] = True
                self._spill(slots[mine[full]])
            left = left[~first]

    def _spill(self, slots: Slots) -> None:
        groups = self._table.groups[slots].tolist()
        for group, key, slot in zip(groups, self._table.hashes(slots), slots.tolist(), strict=True):
            self._spilled[_packed(group, key)] = slot

    def remove(self, slots: Slots) -> None:
        """Remove the keys that slots have in the table; all of them are here."""
        mixed = self._mix_of(slots)
        at = mixed >> self._shift
        entries = self._rows.take(at, axis=0)
        mine = entries[:, :_WIDTH] == _fingerprints(mixed)[:, None]
        mine &= entries[:, _WIDTH:] == slots[:, None]
        hits = np.flatnonzero(mine)
        self._rows[at[hits >> _LOG_WIDTH], hits & (_WIDTH - 1)] = 0
        if len(hits) < len(slots):
            gone = slots[~mine.any(axis=1)]
            groups = self._table.groups[gone].tolist()
            for group, key in zip(groups, self._table.hashes(gone), strict=True):
                del self._spilled[_packed(group, key)]

    def clear(self) -> None:
        """Remove every key."""
        self._rows[:] = 0
        self._marked[:] = False
        self._spilled = {}

    # --- the array ---------------------------------------------------------------------------

    def _build(self, rows: int) -> None:
        self._rows: Rows = np.zeros((rows, 2 * _WIDTH), dtype=np.uint32)
        self._marked = np.zeros(rows, dtype=np.bool_)
        # Only of use within ``_place``; its content outside is arbitrary.
        self._owner = np.empty(rows, dtype=np.int32)
        self._shift = np.uint64(64 - (rows.bit_length() - 1))

    def _grow(self) -> None:
        here = self._rows[:, _WIDTH:][self._rows[:, :_WIDTH] != 0].astype(np.int64)
        spilled = np.fromiter(self._spilled.values(), np.int64, len(self._spilled))
        slots = np.concatenate([here, spilled])
        self._build(2 * len(self._rows))
        self._spilled = {}
        mixed = self._mix_of(slots)
        self._place(mixed >> self._shift, _fingerprints(mixed), slots)

    def _mix_of(self, slots: Slots) -> Words:
        words = words_of(self._table.blob(slots), self._table.hash_bytes)
        return self._mix(words, self._table.groups[slots])

    def _mix(self, words: Words, group: int | NDArray[np.int16]) -> Words:
        if isinstance(group, int):
            salt: np.uint64 | Words = np.uint64(group)
        else:
            salt = group.astype(np.uint64)
        # Small integers differ in their last bytes only, which are the highest bits here.
        mixed: Words = words ^ (words >> np.uint64(32))
        mixed += salt
        mixed *= np.uint64(_GOLDEN)
        return mixed


_LOG_WIDTH: Final = _WIDTH.bit_length() - 1


def _packed(group: int, key: bytes) -> bytes:
    """Return a dict's key that the collector does not look at."""
    return key + group.to_bytes(2, "big")


def _fingerprints(mixed: Words) -> Rows:
    """Return other bits than those that name the row; 0 is nobody's."""
    prints: Rows = (mixed >> np.uint64(_FINGERPRINT_BITS)).astype(np.uint32)
    return prints | np.uint32(1)


def words_of(blob: bytes, size: int) -> Words:
    """Return the first 8 bytes of each hash of ``size`` bytes, shorter ones with zeros behind."""
    if size % 8 == 0:
        words: Words = np.frombuffer(blob, dtype=np.uint64)[:: size // 8]
        return words
    given = np.frombuffer(blob, dtype=np.uint8).reshape(-1, size)
    padded = np.zeros((len(given), 8), dtype=np.uint8)
    padded[:, : min(size, 8)] = given[:, :8]
    return padded.view(np.uint64).ravel()
