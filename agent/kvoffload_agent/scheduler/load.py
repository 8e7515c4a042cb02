"""Plans the load of what a lookup promised, into the blocks that were allocated (section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, Group, ceil_div
from kvoffload_agent.scheduler.lookup.tail import tail_position
from kvoffload_agent.scheduler.plan import Part
from kvoffload_agent.scheduler.request import RequestState, positions
from kvoffload_agent.scheduler.types import Blocks
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.slots import READY, Slots


class UnexpectedLoadError(Exception):
    """An engine asks for a load that no lookup promised; the engine's side must be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoad:
    """What one group loads: keys, their slots, and the entries of the copy."""

    run: KeyRun
    slots: Slots
    part: Part


def plan_group(
    geometry: Geometry,
    pool: PartitionPool,
    client: Client,
    state: RequestState,
    group: Group,
    *,
    end: int,
    table: Blocks,
) -> GroupLoad:
    """Plan one group's part of a load that ends at token ``end``.

    ``table``: blocks as the engine allocated them, negative = has its content already, 0 = null.

    Raises:
        UnexpectedLoadError: keys or blocks up to ``end`` are missing.
    """
    per_chunk = geometry.blocks_per_chunk
    last_block = ceil_div(end, group.tokens_per_block)
    first_block = _first_block(
        table, ceil_div(state.local, group.tokens_per_block), last_block, sync=state.sync
    )
    if first_block == last_block:
        empty = np.empty(0, dtype=np.int64)
        nothing = KeyRun(group=group.number, hashes=[], positions=empty)
        return GroupLoad(run=nothing, slots=empty, part=Part.empty(last_block))
    if len(table) < last_block:
        raise UnexpectedLoadError(f"{len(table)} blocks do not reach token {end}")
    first, last = first_block // per_chunk, ceil_div(end, group.chunk)
    run = _run(geometry, state, group, first, last)
    slots = pool.find(client, group.number, run.hashes)
    at = np.arange(first_block, last_block)
    return GroupLoad(
        run=run,
        slots=slots,
        part=Part(
            blocks=np.abs(table[first_block:last_block]),
            slots=slots[at // per_chunk - first],
            index=at % per_chunk,
            first=first_block,
        ),
    )


def fit_end(
    geometry: Geometry, pool: PartitionPool, client: Client, state: RequestState, end: int
) -> bool:
    """Fit a promised hit to an engine that accepted it only up to token ``end``.

    A recurrent state is there at ends of chunks and at boundaries that were stored, nowhere else;
    the state of a later end holds tokens that come after it. So the promised tail is given up for
    the whole chunks before it, or for another tail that ends at ``end`` exactly. vLLM asserts
    (``scheduler.md`` section 10 (d)).

    Returns:
        Whether there is a state for ``end``; if not, nothing may be loaded.

    Raises:
        UnexpectedLoadError: a tail was promised and ``end`` lies behind it.
    """
    if end == state.promised or not geometry.mamba_chunk:
        return True
    tail, whole = state.tail, end % geometry.mamba_chunk == 0
    if tail and end > tail:
        raise UnexpectedLoadError(f"a hit that ends at {tail} can't be stretched to {end}")
    state.tail = 0
    if whole:
        states = [group for group in geometry.groups if group.align]
        return all(_ready(pool, client, state, group, end) for group in states)
    if not geometry.partial_tail or end % geometry.tokens_per_hash:
        return False
    for group in geometry.groups:
        if not _ready(pool, client, state, group, tail_position(geometry, group, end)):
            return False
    state.tail = end
    return True


def _ready(
    pool: PartitionPool, client: Client, state: RequestState, group: Group, position: int
) -> bool:
    key = state.key_at(position)
    if key is None:
        return False
    slot = int(pool.find(client, group.number, [key])[0])
    return slot >= 0 and int(pool.host.table.refs[slot]) >= READY


def _first_block(table: Blocks, low: int, high: int, *, sync: bool) -> int:
    """Return the first block without content; below ``low`` are blocks that never get any.

    ``sync``: the engine hashes the blocks of the load already when it allocates them, because they
    will have their content before anybody reads them.
    """
    empty = np.flatnonzero(table[low:high] != 0 if sync else table[low:high] > 0)
    return low + int(empty[0]) if len(empty) else high


def _run(geometry: Geometry, state: RequestState, group: Group, first: int, last: int) -> KeyRun:
    keys = state.keys[group.number]
    ends = positions(group, first, last - first)
    hashes: Sequence[bytes] = keys[first:last]
    if state.tail:
        position = tail_position(geometry, group, state.tail)
        key = state.key_at(position)
        hashes = [*keys[first : last - 1], *([key] if key is not None else [])]
        ends[-1] = position
    if len(hashes) != last - first:
        raise UnexpectedLoadError(f"{len(keys)} keys do not reach chunk {last}")
    return KeyRun(group=group.number, hashes=hashes, positions=ends)
