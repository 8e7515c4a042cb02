"""Key → slot. A key is (group, hash)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from kvoffload_agent.tiers.slots import Slots


class Index:
    """One dict from hash to slot for each group: values are ints, so the collector skips them."""

    def __init__(self) -> None:
        self._groups: list[dict[bytes, int]] = []

    def find(self, group: int, hashes: Sequence[bytes]) -> Slots:
        """Return the slot of each hash, -1 where there is none."""
        if group >= len(self._groups):
            return np.full(len(hashes), -1, dtype=np.int64)
        get = self._groups[group].get
        return np.fromiter(map(get, hashes, repeat(-1)), dtype=np.int64, count=len(hashes))

    def insert(self, group: int, hashes: Sequence[bytes], slots: Slots) -> None:
        """Add keys that are not there."""
        while group >= len(self._groups):
            self._groups.append({})
        self._groups[group].update(zip(hashes, slots.tolist(), strict=True))

    def remove(self, group: int, hashes: Sequence[bytes]) -> None:
        """Remove keys that are there."""
        table = self._groups[group]
        for key in hashes:
            del table[key]

    def clear(self) -> None:
        """Remove every key."""
        self._groups = []
