"""Promotions, cascades and filters (worked examples 68 to 71)."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import StubTier, World, full, hashes_of

from kvoffload_agent.scheduler.types import RequestCaps, TierMatcher
from kvoffload_agent.tiers.secondary import Finished, Verdict

[KEY] = hashes_of(0, 1)


def _refs(world: World) -> list[int]:
    slots = world.pool.host.index.find(0, [KEY])
    return world.pool.host.table.refs[slots].tolist()


def test_68_a_stored_chunk_is_pinned_until_every_tier_has_it() -> None:
    world = World(full(4), tokens=4, tiers=[StubTier(), StubTier()])
    handle = world.request()
    [plan] = world.run(handle, 4).stores
    world.done(plan)
    assert _refs(world) == [2]
    assert world.idle().busy
    [first], [second] = (list(tier.stores) for tier in world.tiers)
    world.tiers[0].done.append(Finished(job=first, success=True))
    world.idle()
    assert _refs(world) == [1]
    world.tiers[1].done.append(Finished(job=second, success=False))
    assert not world.idle().busy
    assert _refs(world) == [0]


@pytest.mark.parametrize(
    ("matchers", "hit"),
    [
        ((), 0),
        (None, None),
        ((TierMatcher(),), None),
        ((TierMatcher(medium="storage"),), None),
        ((TierMatcher(medium="cpu"),), 0),
        ((TierMatcher(locality="remote"),), 0),
        ((TierMatcher(medium="cpu"), TierMatcher(locality="local")), None),
    ],
)
def test_69_a_filter_concerns_secondary_tiers(
    matchers: tuple[TierMatcher, ...] | None, hit: int | None
) -> None:
    world = World(full(4), tokens=8, tiers=[StubTier({(0, KEY): Verdict.HIT})])
    caps = RequestCaps(load_tiers=matchers)
    assert world.ask(caps).tokens == hit
    world = World(full(4), tokens=4, tiers=[StubTier()])
    world.put_all()
    assert world.ask(caps).tokens == 4


def test_71_a_hit_in_any_tier_is_better_than_a_retry_but_needs_room() -> None:
    retry, hit = StubTier({(0, KEY): Verdict.RETRY}), StubTier({(0, KEY): Verdict.HIT})
    world = World(full(4), tokens=4, tiers=[retry, hit])
    assert world.ask().tokens is None
    world.idle()
    assert list(hit.loads.values()) == [[(0, KEY)]]
    cramped = World(full(4), tokens=4, tiers=[retry, hit], slots=1)
    cramped.put(0, [b"x" * 32], written=False)
    assert cramped.ask().tokens == 0


def test_a_promotion_that_arrives_can_be_loaded_and_counts_for_its_tier() -> None:
    tier = StubTier({(0, KEY): Verdict.HIT})
    world = World(full(4), tokens=4, tiers=[tier])
    assert world.ask().tokens is None
    world.idle()
    [job] = tier.loads
    tier.done.append(Finished(job=job, success=True))
    assert world.match(world.handle).tokens == 4
    result = world.alloc(world.handle, 4)
    assert result.sources == {"disk": 4}


def test_a_promotion_that_fails_leaves_nothing_behind() -> None:
    tier = StubTier({(0, KEY): Verdict.HIT})
    world = World(full(4), tokens=4, tiers=[tier], slots=1)
    assert world.ask().tokens is None
    world.idle()
    [job] = tier.loads
    tier.answers.clear()
    tier.done.append(Finished(job=job, success=False))
    assert world.match(world.handle).tokens == 0
    assert world.pool.free_slots == 1


def test_a_store_goes_only_to_allowed_tiers() -> None:
    disk, remote = StubTier(), StubTier(locality="remote")
    world = World(full(4), tokens=4, tiers=[disk, remote])
    handle = world.request(RequestCaps(store_tiers=(TierMatcher(locality="local"),)))
    [plan] = world.run(handle, 4).stores
    world.done(plan)
    assert list(disk.stores.values()) == [[(0, KEY)]]
    assert not remote.stores
