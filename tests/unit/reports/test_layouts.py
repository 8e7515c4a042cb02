"""Reports about layouts: prompts and pools whose sizes just fit, or just do not."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import FREE, World, full, hashes_of, sliding


@pytest.mark.parametrize(("tokens", "hit"), [(127, 112), (128, 127), (129, 128), (130, 128)])
def test_b23_a_window_as_long_as_the_prompt_loads_and_stores(tokens: int, hit: int) -> None:
    world = World(sliding(16, 128), tokens=tokens)
    handle = world.request()
    plans = world.run(handle, tokens).stores
    assert world.chunks_of(plans) == list(range(tokens // 16))
    world.done(*plans)
    world.end(handle)
    assert world.ask().tokens == hit
    # What the allocator keeps: blocks that the window before the first computed token reaches.
    kept = max(0, hit - 128 + 1) // 16
    blocks = [0] * kept + world.new_blocks(-(-hit // 16) - kept)
    plan = world.alloc(world.handle, hit, [blocks]).plan
    assert plan is not None
    assert world.chunks_of([plan]) == list(range(kept, -(-hit // 16)))
    assert plan.blocks.tolist() == blocks[kept:]


@pytest.mark.parametrize(("slots", "evicted"), [(565, 0), (564, 1)])
def test_b25_a_pool_that_fits_exactly_and_one_that_lacks_a_chunk(slots: int, evicted: int) -> None:
    world = World(full(16), tokens=16, slots=slots)
    left = 0
    for name in range(1, 566):
        handle = world.request(FREE, hashes=hashes_of(name, 1))
        result = world.run(handle, 16)
        world.done(*result.stores)
        left += result.evicted + world.end(handle).evicted
    found = world.pool.find(
        world.engine.client, 0, [hashes_of(name, 1)[0] for name in range(1, 566)]
    )
    assert int((found < 0).sum()) == evicted
    assert left == evicted
