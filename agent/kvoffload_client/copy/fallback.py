"""The copy without a compiler: numpy row gathers where blocks form runs, memmove elsewhere.

Source: ``datapath.md`` section 1.3: per run of at least 16 blocks, ``np.take(..., mode="clip")``
into a contiguous destination, ``rows[ids] = chunk`` from a contiguous source, as int64. Both
release the GIL; element-wise kernels and temporaries of the whole batch are what to avoid.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]

# A run shorter than this costs more to set up as a gather than to move block by block.
_MIN_RUN: Final = 16
_WORD: Final = 8


def copy_blocks(src: Addresses, dst: Addresses, lengths: Addresses) -> None:
    """Copy ``lengths[i]`` bytes from ``src[i]`` to ``dst[i]`` for every i."""
    start = 0
    for stop in _run_ends(src, dst, lengths):
        _copy_run(src[start:stop], dst[start:stop], int(lengths[start]))
        start = stop


def _run_ends(src: Addresses, dst: Addresses, lengths: Addresses) -> list[int]:
    """Return where runs end: equal lengths, with the source or the destination contiguous."""
    count = len(src)
    if count == 0:
        return []
    step = lengths[:-1]
    follows = (dst[1:] - dst[:-1] == step) | (src[1:] - src[:-1] == step)
    same = (lengths[1:] == step) & follows
    return [*(np.flatnonzero(~same) + 1).tolist(), count]


def _copy_run(src: Addresses, dst: Addresses, length: int) -> None:
    """Copy a run of blocks of one length, by a gather or a scatter of rows if it can be one."""
    if length and len(src) >= _MIN_RUN and length % _WORD == 0:
        if _contiguous(dst, length) and (rows := _rows(src, length)) is not None:
            table, ids = rows
            out = _words(int(dst[0]), len(dst) * length).reshape(len(dst), -1)
            np.take(table, ids, axis=0, out=out, mode="clip")
            return
        if _contiguous(src, length) and (rows := _rows(dst, length)) is not None:
            table, ids = rows
            table[ids] = _words(int(src[0]), len(src) * length).reshape(len(src), -1)
            return
    for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
        ctypes.memmove(destination, source, length)


def _contiguous(addresses: Addresses, length: int) -> bool:
    return bool(np.all(addresses[1:] - addresses[:-1] == length))


def _rows(addresses: Addresses, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return (table, row ids) that view the addresses as rows of one table, if they are that.

    The table spans memory between blocks too; numpy touches only the rows that are named.
    """
    base = int(addresses.min())
    offsets = (addresses - np.uint64(base)).astype(np.int64)
    ids, rest = np.divmod(offsets, length)
    if base % _WORD or rest.any():
        return None
    table = _words(base, (int(ids.max()) + 1) * length).reshape(-1, length // _WORD)
    return table, ids


def _words(address: int, nbytes: int) -> NDArray[np.int64]:
    """View memory as int64; the caller keeps it alive."""
    buffer = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
    return np.frombuffer(buffer, dtype=np.int64)
