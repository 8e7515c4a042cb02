"""Mamba states that the engine hands over at boundaries, because the block will change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, Group
from kvoffload_agent.scheduler.lookup.tail import tail_position
from kvoffload_agent.scheduler.plan import Part
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.scheduler.types import Handoff
from kvoffload_agent.tiers.policy.base import KeyRun


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleBlock:
    """One block of a group to be stored under a key of its own."""

    run: KeyRun
    block: int
    at: int
    index: int

    def part(self, slot: int) -> Part:
        """Return the copy's entry."""
        return Part(
            blocks=np.array([self.block], dtype=np.int64),
            slots=np.array([slot], dtype=np.int64),
            index=np.array([self.index], dtype=np.int64),
            first=self.at,
        )


def is_aligned(geometry: Geometry, handoff: Handoff) -> bool:
    """Whether a hand-off is at the end of a chunk."""
    return handoff.boundary % geometry.groups[handoff.group].chunk == 0


def aligned(geometry: Geometry, state: RequestState, handoff: Handoff) -> SingleBlock | None:
    """Return the state at the end of a chunk, None if it may not be stored."""
    group = geometry.groups[handoff.group]
    if handoff.boundary > state.storable_tokens(state.num_tokens):
        return None
    boundary = handoff.boundary
    return _single(
        geometry, state, group, position=boundary, boundary=boundary, block=handoff.block
    )


def partial(
    geometry: Geometry, state: RequestState, handoff: Handoff, *, computed: int
) -> list[SingleBlock] | None:
    """Return what every group needs for a hit that ends inside a chunk, None if it is not stored.

    ``computed``: tokens computed after this step.
    """
    if not geometry.partial_tail or handoff.boundary % geometry.tokens_per_hash:
        return None
    if handoff.boundary > state.storable_tokens(state.num_tokens):
        return None
    proof = handoff.boundary + geometry.eagle_margin
    if geometry.eagle_margin and not (state.loaded and computed >= proof):
        return None
    found = []
    for group in geometry.groups:
        if group.align:
            block = handoff.block if group.number == handoff.group else 0
        else:
            at = (handoff.boundary - 1) // group.tokens_per_block
            table = state.blocks[group.number]
            block = table[at] if at < len(table) else 0
        # An eagle group's key proves one token more than the block is stored for.
        position = tail_position(geometry, group, handoff.boundary)
        single = _single(
            geometry, state, group, position=position, boundary=handoff.boundary, block=block
        )
        if single is None:
            return None
        found.append(single)
    return found


def _single(
    geometry: Geometry,
    state: RequestState,
    group: Group,
    *,
    position: int,
    boundary: int,
    block: int,
) -> SingleBlock | None:
    key = state.key_at(position)
    if key is None or not block:
        return None
    at = (boundary - 1) // group.tokens_per_block
    return SingleBlock(
        run=KeyRun(group=group.number, hashes=[key], positions=np.array([position])),
        block=block,
        at=at,
        index=at % geometry.blocks_per_chunk,
    )
