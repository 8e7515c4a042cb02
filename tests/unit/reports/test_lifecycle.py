"""Reports about requests that end where nobody expected it."""

from __future__ import annotations

from tests.unit.scheduler.builders import World, full

F16 = full(16)


def test_b47_a_request_that_ends_in_the_queue_changes_nothing() -> None:
    world = World(F16, tokens=64)
    untold = world.request()
    asked = world.request()
    assert world.match(asked).tokens == 0
    for handle in (untold, asked):
        world.engine.finish(handle, status="aborted", computed=0)
    result = world.idle(finished=[untold, asked])
    assert (result.stores, result.flush, result.busy) == ((), (), False)
    assert world.engine.requests == {}
    assert world.pool.free_slots == 4096


def test_b48_an_end_during_a_copy_gives_everything_back_when_the_copy_ends() -> None:
    world = World(F16, tokens=64)
    world.put_all()
    assert world.ask().tokens == 64
    plan = world.alloc(world.handle, 64).plan
    assert plan is not None
    refs = world.pool.host.table.refs
    world.end(world.handle, status="aborted")
    assert (refs[plan.slots] == 1).all(), "the copy still reads them"
    world.done(plan)
    assert (refs[plan.slots] == 0).all()

    storing = World(F16, tokens=64)
    handle = storing.request()
    [store] = storing.run(handle, 64).stores
    storing.end(handle, status="aborted")
    assert storing.pool.free_slots == 4092
    storing.engine.complete(done=[], failed=[store.job], now=0.0)
    assert storing.pool.free_slots == 4096, "what was never written can be written"
    for each in (world, storing):
        assert each.engine.requests == {}
        assert not each.idle().busy
