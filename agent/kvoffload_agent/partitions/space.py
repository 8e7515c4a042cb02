"""Where the rows of chunks are: slot number → (segment, offset)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# Whole pages keep one chunk's faults its own and its copies aligned. A row is never smaller: the
# index takes about 120 bytes for each (``make bench``), which no memory limit of the arena bounds,
# so an engine of tiny blocks must not be able to have millions of rows for little memory.
PAGE_BYTES: Final = 4096


def row_bytes(*, blocks_per_chunk: int, block_bytes: list[int]) -> int:
    """Return the bytes of one chunk's row on one rank, for the group with the largest blocks.

    ``block_bytes``: bytes of one block of each group on one rank.
    """
    size = blocks_per_chunk * max(block_bytes)
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class SlotSpace:
    """Maps slots to places. Slots are numbered from 0 in the order in which segments came."""

    def __init__(self, *, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self._segments = np.empty(0, dtype=np.uint64)
        self._offsets = np.empty(0, dtype=np.uint64)

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self._segments)

    def extend(self, *, segment: int, size: int) -> int:
        """Add the rows of a segment of ``size`` bytes (rank 0's id); return how many."""
        rows = size // self.row_bytes
        self._segments = np.concatenate([self._segments, np.full(rows, segment, dtype=np.uint64)])
        offsets = np.arange(rows, dtype=np.uint64) * np.uint64(self.row_bytes)
        self._offsets = np.concatenate([self._offsets, offsets])
        return rows

    def locate(
        self, slots: NDArray[np.int64], within: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return (segments, offsets) of slots, ``within`` bytes into each row; equal lengths."""
        return self._segments[slots], self._offsets[slots] + within.astype(np.uint64)
