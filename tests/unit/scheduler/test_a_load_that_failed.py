"""After a load that failed the engine computes its tokens, and they are stored like any others."""

from __future__ import annotations

from tests.unit.scheduler.builders import World, full, sliding

from kvoffload_agent.scheduler.types import CopyPlan


def fail(world: World, plan: CopyPlan) -> None:
    world.engine.complete(done=[], failed=[plan.job], now=0.0)


def load(world: World, tokens: int, *, local: int = 0) -> CopyPlan:
    """Let a new request load so many tokens, up to the step in which its copy begins."""
    assert world.ask(local=local).tokens == tokens
    plan = world.alloc(world.handle, tokens).plan
    assert plan is not None
    world.idle()
    return plan


def test_what_is_computed_after_a_load_that_failed_is_stored_and_found() -> None:
    world = World(full(4), tokens=18)
    world.put_all()
    fail(world, load(world, 16))
    stores = world.run(world.handle, 18).stores
    assert world.chunks_of(stores) == [0, 1, 2, 3]
    world.done(*stores)
    assert world.ask().tokens == 16


def test_groups_with_a_window_store_it_as_well() -> None:
    world = World(full(4), sliding(4, 8), tokens=18)
    world.put_all()
    fail(world, load(world, 16))
    stores = world.run(world.handle, 18).stores
    assert world.chunks_of(stores, 0) == [0, 1, 2, 3]
    assert world.chunks_of(stores, 1)[-2:] == [2, 3]
    world.done(*stores)
    assert world.ask().tokens == 16


def test_a_report_of_failure_after_the_new_table_still_has_the_chunks_stored() -> None:
    """The scheduler may hear of the failure before the worker's own report has arrived."""
    world = World(full(4), tokens=18)
    world.put_all()
    plan = load(world, 16)
    assert world.run(world.handle, 18).stores == ()
    fail(world, plan)
    world.grow(world.handle, 1)
    assert world.chunks_of(world.run(world.handle, 1).stores) == [0, 1, 2, 3]


def test_a_window_that_was_given_away_before_the_report_is_not_stored() -> None:
    """Block 12 left the window and holds another request's KV when the failure is told."""
    world = World(full(4), sliding(4, 8), tokens=20)
    world.put_all()
    plan = load(world, 19)
    world.run(world.handle, 20, blocks=[[1, 2, 3, 4, 5], [11, 12, 13, 14, 15]])
    world.run(world.request(tokens=3), 3, blocks=[[6], [12]])
    fail(world, plan)
    world.grow(world.handle, 1)
    stores = world.run(world.handle, 1, blocks=[[7], [16]]).stores
    assert stores
    assert 12 not in [block for plan in stores for block in plan.blocks.tolist()]


def test_a_request_aborted_between_the_report_and_its_schedule_stores_nothing() -> None:
    """It was preempted before: the blocks of its old table belong to others by now."""
    world = World(full(4), tokens=16)
    handle = world.request()
    world.done(*world.run(handle, 6).stores)
    world.idle(preempted=[handle])
    world.put(0, world.hashes[1:])
    assert world.match(handle).tokens == 16
    plan = world.alloc(handle, 16).plan
    assert plan is not None
    world.idle()
    fail(world, plan)
    world.engine.finish(handle, status="aborted", computed=16)
    assert world.idle(finished=[handle]).stores == ()


def test_a_failure_of_one_rank_is_a_failure_once_all_have_reported() -> None:
    world = World(full(4), tokens=18, workers=2)
    world.put_all()
    plan = load(world, 16)
    world.engine.complete(done=[], failed=[plan.job], now=0.0)
    assert world.engine.requests[world.handle].next_store == [4]
    world.engine.complete(done=[plan.job], failed=[], now=0.0)
    assert world.chunks_of(world.run(world.handle, 18).stores) == [0, 1, 2, 3]
