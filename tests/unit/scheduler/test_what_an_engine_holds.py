"""What a promise and a load keep from others, and that an engine that leaves keeps nothing."""

from __future__ import annotations

from tests.unit.scheduler.builders import World, full, hashes_of, mamba

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.tiers.policy.base import KeyRun


def tail_world(slots: int = 4096) -> World:
    """Nothing but the tail that ends at token 12, in both groups."""
    world = World(full(16), mamba(16), tokens=30, per_hash=4, slots=slots)
    for group in (0, 1):
        world.put(group, [world.hashes[2]])
    return world


def test_a_tail_that_is_being_loaded_is_waited_for() -> None:
    world = tail_world()
    assert world.ask().tokens == 12
    plan = world.alloc(world.handle, 12).plan
    assert plan is not None
    assert world.ask().tokens is None
    world.idle()
    world.done(plan)
    assert world.ask().tokens == 12


def test_a_promised_tail_is_not_evicted_by_another_engine() -> None:
    world = tail_world(slots=3)
    other = EngineScheduler(world.config, world.pool)
    assert world.ask().tokens == 12
    run = KeyRun(group=0, hashes=hashes_of(9, 2), positions=None)
    assert world.pool.offer(other.client, world.pool.open(), [run]) is None
    assert world.alloc(world.handle, 12).plan is not None


def test_an_engine_that_leaves_gives_back_what_it_promised_read_and_wrote() -> None:
    world = World(full(16), tokens=64, slots=8)
    holding = EngineScheduler(world.config, world.pool, safe_reset=True)
    world.engine, left = holding, world.engine
    left.close()
    world.put_all()
    storing = world.request(hashes=hashes_of(7, 4))
    world.run(storing, 64)
    assert world.pool.free_slots == 0
    world.engine.reset()
    assert world.pool.free_slots == 4, "the copies of before the reset go on"
    assert world.ask().tokens == 0
    other = EngineScheduler(world.config, world.pool)
    assert world.pool.shared
    world.engine.close()
    assert world.pool.free_slots == 8
    assert world.engine.requests == {}
    assert not world.pool.shared
    other.close()
