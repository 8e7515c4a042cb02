"""How to copy fragments: by which of CUDA's ways, and in which calls. No GPU is needed here.

The ways and where they change are published measurements (``datapath.md`` section 7): batched
copies move small fragments at 4 to 7 GB/s and from 28 KiB on at 40 GB/s and more, while a kernel
that reads registered memory is fast below that. What counts is the fragment that is copied, not
the engine's page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from kvoffload_client.carrier import Addresses

Method = Literal["single", "batch", "kernel"]

# vLLM's constants, found on an H100 (PR #42212): below this size, and from this many fragments
# on, its kernel loads faster than batched copies.
KERNEL_BELOW_BYTES: Final = 28 * 1024
KERNEL_FROM_COUNT: Final = 16
# The kernel moves vectors of this many bytes.
KERNEL_ALIGNMENT: Final = 16
# Bounds the table of a kernel's launch to 192 KiB; a slice of 32 MiB has 4,096 fragments of 8 KiB.
MAX_BATCH: Final = 8192
# One call that registers 512 GiB or more fails (vLLM PR #51081); this is far below.
PIECE_BYTES: Final = 64 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a GPU's driver offers besides single copies."""

    batch: bool
    kernel: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """Copies for one call of a stream, or one call each with ``single``."""

    method: Method
    src: Addresses
    dst: Addresses
    lengths: Addresses


@dataclass(frozen=True, slots=True)
class Pieces:
    """Registered ranges ``[starts[i], ends[i])``, ascending, without overlap."""

    starts: Addresses
    ends: Addresses


def pieces_of(address: int, nbytes: int) -> list[tuple[int, int]]:
    """Return (address, bytes) of the pieces in which a segment is registered, in order."""
    return [
        (address + start, min(PIECE_BYTES, nbytes - start))
        for start in range(0, nbytes, PIECE_BYTES)
    ]


def batches(
    src: Addresses,
    dst: Addresses,
    lengths: Addresses,
    *,
    loads: bool,
    pieces: Pieces,
    abilities: Abilities,
) -> Iterator[Batch]:
    """Yield the calls that copy ``lengths[i]`` bytes from ``src[i]`` to ``dst[i]`` for every i.

    Args:
        src: addresses.
        dst: addresses; ranges do not overlap.
        lengths: bytes, above 0.
        loads: whether ``src`` is the host's side; else ``dst`` is.
        pieces: what of the host's memory is registered.
        abilities: what the driver offers.
    """
    src, dst, lengths = _joined(src, dst, lengths)
    src, dst, lengths = _cut(src, dst, lengths, loads=loads, pieces=pieces)
    host = src if loads else dst
    methods = _methods(src | dst | lengths, lengths, _registered(host, pieces), loads, abilities)
    for method in ("kernel", "batch", "single"):
        chosen = np.flatnonzero(methods == _CODES[method])
        for start in range(0, len(chosen), MAX_BATCH):
            part = chosen[start : start + MAX_BATCH]
            yield Batch(method, src[part], dst[part], lengths[part])


_CODES: Final[dict[Method, int]] = {"single": 0, "batch": 1, "kernel": 2}


def _methods(
    bits: Addresses,
    lengths: Addresses,
    registered: NDArray[np.bool_],
    loads: bool,  # noqa: FBT001 - internal
    abilities: Abilities,
) -> NDArray[np.int8]:
    """Return a code for each fragment; ``bits`` of its addresses and length, for alignment.

    Memory that is not registered gets calls of its own: a range of a batch must be wholly
    registered or wholly not, and the driver copies such memory in the call.
    """
    methods = np.full(len(lengths), _CODES["single"], dtype=np.int8)
    if abilities.batch and np.count_nonzero(registered) > 1:
        methods[registered] = _CODES["batch"]
    if abilities.kernel and loads:
        aligned = bits % np.uint64(KERNEL_ALIGNMENT) == 0
        small = registered & aligned & (lengths < np.uint64(KERNEL_BELOW_BYTES))
        if np.count_nonzero(small) >= KERNEL_FROM_COUNT:
            methods[small] = _CODES["kernel"]
    return methods


def _joined(
    src: Addresses, dst: Addresses, lengths: Addresses
) -> tuple[Addresses, Addresses, Addresses]:
    """Join neighbours that go on where the one before ends, on both sides.

    Two allocations of the engine that lie side by side are never joined: a layer's first block is
    the null block, which no plan names.
    """
    if len(src) < 2:  # noqa: PLR2004 - nothing to join
        return src, dst, lengths
    breaks = (src[1:] != src[:-1] + lengths[:-1]) | (dst[1:] != dst[:-1] + lengths[:-1])
    first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
    return src[first], dst[first], np.add.reduceat(lengths, first)


def _cut(
    src: Addresses, dst: Addresses, lengths: Addresses, *, loads: bool, pieces: Pieces
) -> tuple[Addresses, Addresses, Addresses]:
    """Cut fragments where a registered piece ends: no copy may cross from one into another."""
    while True:
        host = src if loads else dst
        room = _room(host, pieces)
        crossing = np.flatnonzero(lengths > room)
        if not len(crossing):
            return src, dst, lengths
        head = room[crossing]
        after = crossing + 1
        src = np.insert(src, after, src[crossing] + head)
        dst = np.insert(dst, after, dst[crossing] + head)
        rest = lengths[crossing] - head
        lengths = lengths.copy()
        lengths[crossing] = head
        lengths = np.insert(lengths, after, rest)


def _room(host: Addresses, pieces: Pieces) -> Addresses:
    """Return the bytes from each address to the end of what it is in, or up to the next piece."""
    room = np.full(len(host), np.iinfo(np.uint64).max, dtype=np.uint64)
    if not len(pieces.starts):
        return room
    following = np.searchsorted(pieces.starts, host, side="right")
    inside = _registered(host, pieces)
    room[inside] = pieces.ends[following[inside] - 1] - host[inside]
    before = ~inside & (following < len(pieces.starts))
    room[before] = pieces.starts[following[before]] - host[before]
    return room


def _registered(host: Addresses, pieces: Pieces) -> NDArray[np.bool_]:
    """Return which addresses are in a piece."""
    if not len(pieces.starts):
        return np.zeros(len(host), dtype=np.bool_)
    index = np.searchsorted(pieces.starts, host, side="right").astype(np.int64) - 1
    found: NDArray[np.bool_] = (index >= 0) & (host < pieces.ends[index])
    return found
