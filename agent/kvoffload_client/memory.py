"""An engine's KV memory as addresses, and plans checked against it.

A plan comes from another process. Nothing outside the registered blocks and the mapped segments may
be read or written because of one, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvoffload_api.wire.messages import Plan
from kvoffload_client.layout import KVLayer, KVMemory
from kvoffload_client.segments import Segment, Segments

_U64: Final = np.uint64


class PlanError(Exception):
    """A plan that cannot be carried out as it stands; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Ranges to copy: ``kv[i]`` and ``arena[i]`` are addresses, ``lengths[i]`` bytes each."""

    kv: NDArray[np.uint64]
    arena: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Layers of a group: one element of each array per layer, bytes."""

    addresses: NDArray[np.uint64]
    strides: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    offsets: NDArray[np.uint64]
    block_bytes: int
    num_blocks: int


class KVAddresses:
    """Where blocks of each group are.

    Raises:
        ValueError: a layer's blocks do not fit its memory.
    """

    def __init__(self, memory: KVMemory, *, rank: int) -> None:
        self._rank = rank
        self._alive = memory
        self._groups = [_group(layers) for layers in memory]

    def resolve(self, plan: Plan, segments: Segments) -> tuple[Copies, list[Segment]]:
        """Check a plan and return its copies, and the segments now in use for it.

        Raises:
            PlanError: an entry is out of bounds or names a segment that is not mapped; then
                nothing is in use.
        """
        blocks, numbers, offsets = _columns(plan)
        bounds = self._bounds(plan, blocks)
        unique, index = np.unique(numbers + _U64(self._rank), return_inverse=True)
        taken = segments.take(unique.tolist())
        if taken is None:
            raise PlanError("it names a segment that is not mapped")
        try:
            copies = self._copies(blocks, offsets, bounds, taken, index)
        except BaseException:
            segments.release(taken)
            raise
        return copies, taken

    def _bounds(self, plan: Plan, blocks: NDArray[np.int64]) -> list[tuple[_Group, slice]]:
        """Return each group's entries after checking their lengths and blocks."""
        if not len(plan.group_sizes) == len(plan.lengths) == len(self._groups):
            raise PlanError(f"it is for {len(plan.group_sizes)} groups, not {len(self._groups)}")
        if min(plan.group_sizes, default=0) < 0 or sum(plan.group_sizes) != len(blocks):
            raise PlanError("its group sizes do not add up to its entries")
        bounds = []
        start = 0
        for group, size, length in zip(self._groups, plan.group_sizes, plan.lengths, strict=True):
            part = blocks[start : start + size]
            if size and length != group.block_bytes:
                raise PlanError(f"its blocks have {length} bytes, not {group.block_bytes}")
            # Block 0 is the null block: it holds nothing and is never written.
            if size and not 0 < int(part.min()) <= int(part.max()) < group.num_blocks:
                raise PlanError(f"it names a block outside 1 and {group.num_blocks - 1}")
            bounds.append((group, slice(start, start + size)))
            start += size
        return bounds

    def _copies(
        self,
        blocks: NDArray[np.int64],
        offsets: NDArray[np.uint64],
        bounds: list[tuple[_Group, slice]],
        taken: list[Segment],
        index: NDArray[np.intp],
    ) -> Copies:
        bases = np.array([segment.address for segment in taken], dtype=_U64)[index]
        sizes = np.array([segment.nbytes for segment in taken], dtype=_U64)[index]
        kv, arena, lengths = [], [], []
        for group, part in bounds:
            room = sizes[part]
            length = _U64(group.block_bytes)
            if np.any(room < length) or np.any(offsets[part] > room - length):
                raise PlanError("it names bytes outside a segment")
            rows = blocks[part].astype(_U64)[:, None]
            kv.append((group.addresses + rows * group.strides).ravel())
            arena.append(((bases[part] + offsets[part])[:, None] + group.offsets).ravel())
            lengths.append(np.broadcast_to(group.lengths, (len(rows), len(group.lengths))).ravel())
        joined = np.concatenate(lengths)
        return Copies(
            kv=np.concatenate(kv),
            arena=np.concatenate(arena),
            lengths=joined,
            nbytes=int(joined.sum()),
        )


def _columns(plan: Plan) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    try:
        blocks = np.frombuffer(plan.blocks, dtype="<i8")
        numbers = np.frombuffer(plan.segments, dtype="<u8")
        offsets = np.frombuffer(plan.offsets, dtype="<u8")
    except ValueError as error:
        raise PlanError(f"its columns are not 64-bit integers: {error}") from error
    if not len(blocks) == len(numbers) == len(offsets):
        raise PlanError("its columns have different lengths")
    return blocks, numbers, offsets


def _group(layers: Sequence[KVLayer]) -> _Group:
    if not layers:
        raise ValueError("a group needs at least one layer")
    lengths = [layer.block_bytes for layer in layers]
    return _Group(
        addresses=np.array([_address(layer) for layer in layers], dtype=_U64),
        strides=np.array([layer.block_stride for layer in layers], dtype=_U64),
        lengths=np.array(lengths, dtype=_U64),
        offsets=np.array([sum(lengths[:i]) for i in range(len(lengths))], dtype=_U64),
        block_bytes=sum(lengths),
        num_blocks=min(layer.num_blocks for layer in layers),
    )


def _address(layer: KVLayer) -> int:
    if not 0 < layer.block_bytes <= layer.block_stride:
        raise ValueError(f"{layer.block_bytes} bytes do not fit a stride of {layer.block_stride}")
    if isinstance(layer.memory, int):
        return layer.memory
    view = np.frombuffer(layer.memory, dtype=np.uint8)
    if not view.flags.writeable:
        raise ValueError("KV memory must be writable")
    needed = (layer.num_blocks - 1) * layer.block_stride + layer.block_bytes
    if view.nbytes < needed:
        raise ValueError(f"{view.nbytes} bytes do not hold {layer.num_blocks} blocks ({needed})")
    return int(view.ctypes.data)
