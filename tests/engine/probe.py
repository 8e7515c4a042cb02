"""Counts an engine's copies in memory that another process can read: is one in flight now?"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_client import WorkerSession
from kvoffload_client.copy import BlockCopy

KINDS: Final = ("load", "store")
Addresses = NDArray[np.uint64]
_COLUMNS: Final = 3  # begun, ended, bytes


class CopyProbe:
    """A file of counters, one row for each kind, mapped by both sides.

    A row has how many copies began, how many ended, and the bytes of the last one. The first is
    written before a byte is moved and the second after the last one, each as one aligned word:
    whoever sees them differ sees a copy in flight.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():
            draft = path.with_suffix(".draft")
            draft.write_bytes(bytes(8 * _COLUMNS * len(KINDS)))
            draft.rename(path)
        self._words: np.memmap[Any, np.dtype[np.uint64]] = np.memmap(
            path, dtype=np.uint64, mode="r+", shape=(len(KINDS), _COLUMNS)
        )

    def watch(self, worker: WorkerSession) -> None:
        """Count the copies of a worker that has not started yet."""
        for row, lane in enumerate((worker._loads, worker._stores)):
            lane._copy = self._counted(lane._copy, row)

    def in_flight(self, kind: str, *, at_least: int = 0) -> int:
        """Return the number of the copy of this kind that is in flight, 0 if none is.

        ``at_least``: smaller copies, in bytes, do not count.
        """
        begun, ended, nbytes = self._words[KINDS.index(kind)].tolist()
        return begun if begun > ended and nbytes >= at_least else 0

    def _counted(self, copy: BlockCopy, row: int) -> BlockCopy:
        words = self._words[row]

        def counted(src: Addresses, dst: Addresses, lengths: Addresses) -> None:
            words[2] = lengths.sum()
            words[0] += 1
            try:
                copy(src, dst, lengths)
            finally:
                words[1] += 1

        return counted
