"""Close, reset and hand-offs: what stays readable, what is told, and what is fenced at once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.unit.scheduler.builders import FREE, StubTier, World, full, hashes_of, mamba, sliding

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import Handoff
from kvoffload_agent.tiers.secondary import Verdict


def other_engine(world: World) -> EngineScheduler:
    return EngineScheduler(world.config, world.pool)


def hit_of(engine: EngineScheduler, world: World) -> int | None:
    engine.new_request(
        0,
        num_tokens=world.tokens,
        num_prompt_tokens=world.tokens,
        hashes=world.hashes,
        caps=FREE,
        skip_reading_prefix_cache=False,
    )
    return engine.match(0, computed=0, max_new_tokens=None, now=0.0).tokens


def test_a_chunk_that_a_gone_engine_had_half_written_is_never_read() -> None:
    world = World(full(4), tokens=16)
    world.run(world.request(), 16)
    other = other_engine(world)
    world.engine.close()
    assert hit_of(other, world) == 0
    assert world.pool.free_slots == 4096


def test_a_chunk_that_a_gone_engine_was_loading_stays_for_others() -> None:
    world = World(full(4), tokens=16)
    world.put_all()
    assert world.ask().tokens == 16
    world.alloc(world.handle, 16)
    other = other_engine(world)
    world.engine.close()
    assert hit_of(other, world) == 16


def test_a_reset_promotes_nothing_until_the_copies_from_before_have_ended() -> None:
    [key] = hashes_of(0, 1)
    world = World(full(4), tokens=4, tiers=[StubTier({(0, key): Verdict.HIT})])
    [plan] = world.run(world.request(hashes=hashes_of(5, 1)), 4).stores
    world.engine.reset()
    assert world.ask().tokens == 0
    world.done(plan)
    assert world.ask().tokens is None


def test_a_reset_without_copies_under_way_fences_nothing() -> None:
    [key] = hashes_of(0, 1)
    world = World(full(4), tokens=4, tiers=[StubTier({(0, key): Verdict.HIT})])
    world.engine.reset()
    assert world.ask().tokens is None


@dataclass
class Told(StubTier):
    """Remembers the requests of which it heard that they ended."""

    finished: list[int] = field(default_factory=list)

    def finish(self, request: int) -> None:
        self.finished.append(request)


@pytest.mark.parametrize("holds", [False, True])
def test_a_tier_hears_once_of_the_end_of_a_request_that_wrote_during_a_reset(
    *, holds: bool
) -> None:
    tier = Told()
    world = World(full(4), tokens=4, tiers=[tier])
    world.engine = EngineScheduler(world.config, world.pool, safe_reset=holds)
    handle = world.request()
    [plan] = world.run(handle, 4).stores
    number = world.engine.requests[handle].pool_request.number
    world.engine.reset()
    world.engine.requests[handle].next_store = [1]
    world.end(handle)
    # Where slots are held, the copy is still the request's write, and the tier waits for it.
    assert tier.finished == ([] if holds else [number])
    world.done(plan)
    assert tier.finished == [number]


def test_blocks_that_are_handed_over_are_fenced_while_their_request_runs() -> None:
    world = World(full(16), mamba(16), tokens=40, per_hash=4)
    handle = world.request(FREE)
    handoff = Handoff(group=1, block=77, boundary=28)
    step = world.run(handle, 40, handoffs=[handoff], blocks=[[901, 902, 903], [911, 912, 913]])
    [tail] = [plan for plan in step.stores if 77 in plan.blocks.tolist()]
    assert tail.blocks.tolist() == [902, 77]
    other = world.request(hashes=hashes_of(8, 10))
    # Whole chunks of full attention are fenced at the request's end only.
    assert world.run(other, 16, blocks=[[901], [921]]).flush == ()
    assert world.run(other, 16, blocks=[[902], [922]]).flush == (tail.job,)


@pytest.mark.parametrize(
    ("computed", "ended", "stored"),
    [
        # The window's segment of four blocks begins at block 4. Block 6 was offered already.
        (28, 28, [5]),
        (28, 33, [7]),
        (26, 26, [4, 5]),
        (26, 30, [5, 6]),
    ],
)
def test_a_request_that_is_aborted_stores_what_its_own_last_window_lacks(
    computed: int, ended: int, stored: list[int]
) -> None:
    world = World(full(16), sliding(4, 8), tokens=64)
    handle = world.request()
    tables = [world.new_blocks(4), world.new_blocks(16)]
    first = world.run(handle, computed, blocks=tables)
    assert set(world.chunks_of(first.stores, group=1)).isdisjoint(stored)
    # What failed is not offered again: it would show here if it were.
    world.engine.complete(done=[], failed=[plan.job for plan in first.stores], now=0.0)
    world.engine.finish(handle, status="aborted", computed=ended)
    assert world.chunks_of(world.idle(finished=[handle]).stores, group=1) == stored
