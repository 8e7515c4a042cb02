"""Explicit entries of a copy: which block, which slot, which place within the chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from kvoffload_agent.scheduler.types import Blocks, CopyPlan

_NOTHING = np.empty(0, dtype=np.int64)


class PlanKeys(Sequence[tuple[int, bytes]]):
    """The keys of a plan as (group, hash), built only if somebody looks at them."""

    def __init__(self, runs: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        self._runs = runs
        self._keys: list[tuple[int, bytes]] | None = None

    def __len__(self) -> int:
        return sum(len(hashes) for _, hashes in self._runs)

    @overload
    def __getitem__(self, at: int) -> tuple[int, bytes]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, bytes]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, bytes] | Sequence[tuple[int, bytes]]:
        if self._keys is None:
            self._keys = [(group, key) for group, hashes in self._runs for key in hashes]
        return self._keys[at]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The entries of one group; equal lengths. ``first``: block index of the first entry."""

    blocks: Blocks
    slots: Blocks
    index: Blocks
    first: int

    @classmethod
    def empty(cls, first: int = 0) -> Part:
        """Return a part without entries."""
        return cls(blocks=_NOTHING, slots=_NOTHING, index=_NOTHING, first=first)


def whole_chunks(
    *, table: Sequence[int], chunks: Sequence[int], slots: Blocks, per_chunk: int
) -> Part:
    """Return the entries of whole chunks without their null blocks.

    Args:
        table: The request's blocks of the group.
        chunks: Numbers of the chunks, ascending.
        slots: Slot of each chunk; -1 = the chunk is not copied.
        per_chunk: Blocks per chunk.
    """
    taken = slots >= 0
    if not taken.any():
        return Part.empty()
    numbers = np.asarray(chunks, dtype=np.int64)[taken]
    low = int(numbers[0]) * per_chunk
    high = (int(numbers[-1]) + 1) * per_chunk
    row = np.array(table[low:high], dtype=np.int64)
    at = (numbers[:, None] * per_chunk + np.arange(per_chunk)).ravel()
    blocks = row[at - low]
    there = blocks != 0
    at = at[there]
    return Part(
        blocks=blocks[there],
        slots=np.repeat(slots[taken], per_chunk)[there],
        index=at % per_chunk,
        first=int(at[0]),
    )


def assemble(
    *, job: int, handle: int, parts: Sequence[Part], keys: Sequence[tuple[int, Sequence[bytes]]]
) -> CopyPlan:
    """Join the parts of all groups. ``keys``: per group, hashes in the order of the entries."""
    return CopyPlan(
        job=job,
        handle=handle,
        blocks=np.concatenate([part.blocks for part in parts]),
        slots=np.concatenate([part.slots for part in parts]),
        index=np.concatenate([part.index for part in parts]),
        group_sizes=tuple(len(part.blocks) for part in parts),
        first=tuple(part.first for part in parts),
        keys=PlanKeys(keys),
    )
