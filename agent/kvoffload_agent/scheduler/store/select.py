"""Selects the chunks of one group that are offered in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, Group
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.scheduler.store.reach import Reach
from kvoffload_agent.tiers.slots import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Chunks of one group, ascending."""

    group: Group
    chunks: Sequence[int]


class Selector:
    """Knows for each group what is storable and what of it is worth storing."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._reach = [Reach(geometry, group) for group in geometry.groups]

    def storable(self, state: RequestState, group: Group, tokens: int) -> int:
        """Return how many chunks may be offered when ``tokens`` are offloadable."""
        chunks = min(
            tokens // group.chunk,
            len(state.blocks[group.number]) // self._geometry.blocks_per_chunk,
            len(state.keys[group.number]),
        )
        if group.eagle and not state.status and tokens > state.num_prompt:
            # The newest chunk of a draft model may still change while it decodes.
            chunks -= 1
        return max(chunks, 0)

    def select(self, state: RequestState, group: Group, storable: int) -> Selection | None:
        """Return the chunks from the cursor to ``storable`` that are worth storing."""
        if group.align:
            return None
        first = state.next_store[group.number]
        reach = self._reach[group.number]
        if not reach.has_final_segment:
            return self._within(state, group, first, storable, horizon=None)
        prompt = state.storable_tokens(state.num_prompt) // group.chunk
        if state.status and storable != prompt:
            return self._at_end(state, group, storable, prompt)
        horizon = prompt if storable <= prompt else None
        return self._within(state, group, first, storable, horizon=horizon)

    def first_block(self, state: RequestState, group: Group) -> int:
        """Return the first block that may still be offered.

        It lies behind the cursor where the last window of a request is offered at its end.
        """
        per_chunk = self._geometry.blocks_per_chunk
        cursor = state.next_store[group.number] * per_chunk
        reach = self._reach[group.number]
        if not reach.has_final_segment:
            return cursor
        return reach.final_segment(cursor) // per_chunk * per_chunk

    def _at_end(
        self, state: RequestState, group: Group, storable: int, prompt: int
    ) -> Selection | None:
        """The request ended elsewhere than its prompt: its own last window is kept, too."""
        per_chunk = self._geometry.blocks_per_chunk
        cursor = state.next_store[group.number]
        segment = self._reach[group.number].final_segment(storable * per_chunk)
        # What lies before was not followed: its blocks may have gone to somebody else.
        segment = max(segment, self.first_block(state, group))
        first = min(cursor, segment // per_chunk)
        found = self._within(state, group, first, storable, horizon=storable)
        if found is None:
            return None
        before = self._within(state, group, first, cursor, horizon=prompt)
        offered = set(before.chunks) if before else set()
        chunks = [at for at in found.chunks if at not in offered]
        return Selection(group=group, chunks=chunks) if chunks else None

    def _within(
        self, state: RequestState, group: Group, first: int, last: int, *, horizon: int | None
    ) -> Selection | None:
        if first >= last:
            return None
        per_chunk = self._geometry.blocks_per_chunk
        table = state.blocks[group.number][first * per_chunk : last * per_chunk]
        reach = self._reach[group.number]
        if reach.keeps_all and 0 not in table:
            return Selection(group=group, chunks=range(first, last))
        null = (np.array(table, dtype=np.int64) == 0).reshape(-1, per_chunk)
        if reach.keeps_all:
            good: Mask = ~null.any(axis=1)
        else:
            kept = reach.mask(
                first * per_chunk,
                last * per_chunk,
                horizon=None if horizon is None else horizon * per_chunk,
                boundaries=[state.num_prompt - 1, *state.junctions],
            ).reshape(-1, per_chunk)
            good = ~null[:, -1] & kept.any(axis=1) & ~(kept & null).any(axis=1)
        chunks = (np.flatnonzero(good) + first).tolist()
        return Selection(group=group, chunks=chunks) if chunks else None
