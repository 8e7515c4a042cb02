"""Moves chunks between rows in host memory and an open file, block by block, with checksums."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import threading
import zlib
from typing import Final

import msgspec

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.layout import ALIGN, DamagedError, Header
from kvoffload_agent.tiers.disk.rows import (
    Cancel,
    SlotRows,
    Wanted,
    read_memory,
    write_memory,
)

# Large enough for a disk's full speed, small beside what an agent maps; one for each thread.
BUFFER_BYTES: Final = 4 << 20


class Blocks:
    """Bytes pass through a buffer of the calling thread, so host memory is never mapped."""

    def __init__(self) -> None:
        self._local = threading.local()

    def fill(
        self, number: int, header: Header, rows: SlotRows, first: int, cancel: Cancel
    ) -> tuple[int, list[int]]:
        """Write the rows from ``first`` on and then the header, which knows their checksums.

        Returns the offset of the first chunk and the checksums.
        """
        view = self._buffer()
        data_at = at = len(layout.encode(header))
        filled = 0
        sums = []
        for chunk, key in enumerate(header.keys, start=first):
            total = layout.key_sum(key)
            for row in rows.fds[chunk]:
                done = 0
                while done < rows.row_bytes:
                    piece = view[filled : filled + rows.row_bytes - done]
                    with cancel.lock:
                        cancel.check()
                        read_memory(row, piece, rows.offsets[chunk] + done)
                    total = zlib.crc32(piece, total)
                    done += len(piece)
                    filled += len(piece)
                    if filled == BUFFER_BYTES:
                        self.put(number, view, at)
                        at += filled
                        filled = 0
            sums.append(total)
        if filled:
            whole = layout.align(filled)
            view[filled:whole] = bytes(whole - filled)
            self.put(number, view[:whole], at)
        encoded = layout.encode(_with_sums(header, sums))
        assert len(encoded) == data_at
        for start in range(0, data_at, BUFFER_BYTES):
            part = encoded[start : start + BUFFER_BYTES]
            view[: len(part)] = part
            self.put(number, view[: len(part)], start)
        return data_at, sums

    def load(
        self, number: int, data_at: int, chunk: Wanted, rows: SlotRows, cancel: Cancel
    ) -> None:
        """Fill one row of each rank with a chunk.

        Raises:
            DamagedError: it is not what was written; the rows hold anything.
        """
        view = self._buffer()
        size = rows.row_bytes * len(rows.fds[chunk.row])
        low = data_at + chunk.at * size
        position = low // ALIGN * ALIGN
        total, done = layout.key_sum(chunk.key), 0
        while done < size:
            length = min(layout.align(low + size) - position, BUFFER_BYTES)
            self.get(number, view[:length], position)
            skip = max(0, low - position)
            data = view[skip : min(length, skip + size - done)]
            total = zlib.crc32(data, total)
            self._spread(data, done, chunk, rows, cancel)
            done += len(data)
            position += length
        if total != chunk.checksum:
            raise DamagedError("checksum", f"chunk {chunk.at} differs from what was written")

    def _spread(
        self, data: memoryview, done: int, chunk: Wanted, rows: SlotRows, cancel: Cancel
    ) -> None:
        """Copy the bytes from ``done`` on of a chunk into its rows."""
        while data:
            rank, within = divmod(done, rows.row_bytes)
            piece = data[: rows.row_bytes - within]
            with cancel.lock:
                cancel.check()
                write_memory(rows.fds[chunk.row][rank], piece, rows.offsets[chunk.row] + within)
            data = data[len(piece) :]
            done += len(piece)

    def put(self, number: int, data: memoryview, at: int) -> None:
        """Write whole blocks to a file."""
        while data:
            try:
                done = os.pwrite(number, data, at)
            except OSError as error:
                if error.errno != errno.EINVAL or not _buffered(number):
                    raise
                continue
            data = data[done:]
            at += done

    def get(self, number: int, data: memoryview, at: int) -> None:
        """Read whole blocks of a file.

        Raises:
            DamagedError: it ends before.
        """
        while data:
            try:
                done = os.preadv(number, [data], at)
            except OSError as error:
                if error.errno != errno.EINVAL or not _buffered(number):
                    raise
                continue
            if done == 0:
                raise DamagedError("truncated", f"nothing at offset {at}")
            data = data[done:]
            at += done

    def _buffer(self) -> memoryview:
        """Return this thread's buffer, aligned to pages as O_DIRECT wants it."""
        found: memoryview | None = getattr(self._local, "view", None)
        if found is None:
            found = self._local.view = memoryview(mmap.mmap(-1, BUFFER_BYTES))
        return found


def _buffered(number: int) -> bool:
    """Go on without O_DIRECT; returns whether that changed anything."""
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    if not flags & os.O_DIRECT:
        return False
    fcntl.fcntl(number, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    return True


def _with_sums(header: Header, sums: list[int]) -> Header:
    return msgspec.structs.replace(header, sums=struct.pack(f"<{len(sums)}I", *sums))
