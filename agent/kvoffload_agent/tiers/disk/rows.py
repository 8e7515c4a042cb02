"""What a transfer between host memory and a file needs, and how it is ended."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from kvoffload_agent.tiers.secondary import Key


class CancelledError(Exception):
    """Nobody waits for this any more."""


class VanishedError(Exception):
    """A file was removed by others."""


class Cancel:
    """Ends a transfer between two pieces. After ``cancel`` no byte of host memory is touched."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while a piece is copied from or to host memory; never while a disk is waited for."""
        self.cancelled = False

    def cancel(self) -> None:
        """Let the transfer touch host memory no more."""
        with self.lock:
            self.cancelled = True

    def check(self) -> None:
        """Raise CancelledError if it is."""
        if self.cancelled:
            raise CancelledError


@dataclass(slots=True, kw_only=True)
class SlotRows:
    """Rows of slots in host memory: ``fds`` of all ranks and the ``offsets`` in them, per slot.

    ``owned`` are descriptors of its own, so that memory stays until the transfer has ended.
    """

    fds: list[tuple[int, ...]]
    offsets: list[int]
    row_bytes: int
    owned: list[int]

    def close(self) -> None:
        """Give the descriptors back."""
        for number in self.owned:
            os.close(number)
        self.owned = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A pack that is whole. ``bytes`` of its file, ``folder_bytes`` of its directory's own."""

    bytes: int
    folder_bytes: int
    data_at: int
    sums: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Chunk number ``at`` of a pack goes to number ``row`` of the rows."""

    at: int
    row: int
    key: Key
    checksum: int


def read_memory(row: int, piece: memoryview, at: int) -> None:
    """Copy from a segment.

    Raises:
        CancelledError: the segment is shorter, so the slot is gone.
    """
    if os.preadv(row, [piece], at) != len(piece):
        raise CancelledError


def write_memory(row: int, piece: memoryview, at: int) -> None:
    """Copy into a segment, which must be long enough."""
    if os.pwrite(row, piece, at) != len(piece):
        raise CancelledError
