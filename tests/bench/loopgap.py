"""How long the agent's event loop stands still while the arena grows."""

from __future__ import annotations

import asyncio
import time

from kvoffload_agent.memory.arena import Arena
from kvoffload_agent.memory.reader import SnapshotReader

TICK_SECONDS = 0.001
DEADLINE_SECONDS = 60.0


def growth_gap(nbytes: int) -> float:
    """Return the longest time in seconds between two turns of the loop, beyond the tick itself.

    Raises:
        SystemExit: the guard refuses so much memory.
    """
    return asyncio.run(_gap(nbytes))


async def _gap(nbytes: int) -> float:
    arena = Arena(snapshot=SnapshotReader())
    growing = asyncio.create_task(
        arena.grow(ranks=1, row_bytes=1 << 20, segment_bytes=nbytes, budget=None)
    )
    longest = 0.0
    before = time.perf_counter()
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not growing.done():
                await asyncio.sleep(TICK_SECONDS)
                now = time.perf_counter()
                longest = max(longest, now - before - TICK_SECONDS)
                before = now
            await growing
        if arena.usage.populated < nbytes:
            raise SystemExit(f"only {arena.usage.populated} of {nbytes} bytes could be populated")
    finally:
        arena.close_all()
    return longest
