"""The copy without a compiler: numpy row gathers where blocks form runs, memmove elsewhere.

Source: ``datapath.md`` section 1.3: per run of at least 16 blocks, ``np.take(..., mode="clip")``
into a contiguous destination, ``rows[ids] = chunk`` from a contiguous source, as int64. Both
release the GIL; element-wise kernels and temporaries of the whole batch are what to avoid.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Addresses = NDArray[np.uint64]

# A run shorter than this costs more to set up as a gather than to move block by block.
_MIN_RUN: Final = 16
_WORD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Addresses as rows of one table; ``rows`` has one element per address."""

    table: NDArray[np.int64]
    rows: NDArray[np.int64]


def copy_blocks(src: Addresses, dst: Addresses, lengths: Addresses) -> None:
    """Copy ``lengths[i]`` bytes from ``src[i]`` to ``dst[i]`` for every i."""
    changes = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
    starts = [0, *changes.tolist(), len(src)]
    for start, stop in itertools.pairwise(starts):
        if start < stop:
            _copy_equal(src[start:stop], dst[start:stop], int(lengths[start]))


def _copy_equal(src: Addresses, dst: Addresses, length: int) -> None:
    """Copy blocks of one length: what makes a table is found once, not for every run."""
    sources, targets = _rows(src, length), _rows(dst, length)
    if sources is None or targets is None:
        _move(src, dst, length)
        return
    into_runs, ends = _runs(sources.rows, targets.rows)
    start = 0
    for stop in ends:
        if stop - start < _MIN_RUN:
            _move(src[start:stop], dst[start:stop], length)
        elif into_runs:
            first = int(targets.rows[start])
            out = targets.table[first : first + stop - start]
            np.take(sources.table, sources.rows[start:stop], axis=0, out=out, mode="clip")
        else:
            first = int(sources.rows[start])
            chunk = sources.table[first : first + stop - start]
            targets.table[targets.rows[start:stop]] = chunk
        start = stop


def _runs(sources: NDArray[np.int64], targets: NDArray[np.int64]) -> tuple[bool, list[int]]:
    """Return (whether destinations form the runs, where each ends).

    The side with fewer runs is taken for all: a run has neighbouring rows on that side only.
    """
    into, out_of = (np.flatnonzero(rows[1:] - rows[:-1] != 1) + 1 for rows in (targets, sources))
    into_runs = len(into) <= len(out_of)
    return into_runs, [*(into if into_runs else out_of).tolist(), len(sources)]


def _move(src: Addresses, dst: Addresses, length: int) -> None:
    for source, destination in zip(src.tolist(), dst.tolist(), strict=True):
        ctypes.memmove(destination, source, length)


def _rows(addresses: Addresses, length: int) -> _Rows | None:
    """Return the addresses as rows of one table, if they are that.

    The table spans memory between blocks too; numpy touches only the rows that are named.
    """
    base = int(addresses.min())
    if length == 0 or length % _WORD or base % _WORD:
        return None
    rows, rest = np.divmod((addresses - np.uint64(base)).astype(np.int64), length)
    if rest.any():
        return None
    table = _words(base, (int(rows.max()) + 1) * length).reshape(-1, length // _WORD)
    return _Rows(table=table, rows=rows)


def _words(address: int, nbytes: int) -> NDArray[np.int64]:
    """View memory as int64; the caller keeps it alive."""
    buffer = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
    return np.frombuffer(buffer, dtype=np.int64)
