"""The cascade drops stores to a tier that cannot keep up, and nothing else (6.10)."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import StubTier, World, full, hashes_of

from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.secondary import Finished, Verdict

MIB = 1 << 20
CHUNKS = 200


class Node:
    """One engine over tiers of which each store takes a given time; every chunk has 1 MiB."""

    def __init__(self, *tiers: StubTier, slot_bytes: int = MIB, chunks: int = 1) -> None:
        self.world = World(full(4), tokens=4, tiers=tiers, slot_bytes=slot_bytes)
        self.tiers = tiers
        self.now = 100.0
        self._chunks = chunks
        self._names = 0

    def store(self) -> list[list[int]]:
        """Store new chunks in host memory; return the jobs that each tier got."""
        self._names += 1
        before = [set(tier.stores) for tier in self.tiers]
        keys = hashes_of(self._names, self._chunks)
        handle = self.world.request(tokens=4 * self._chunks, hashes=keys)
        self.world.pool.advance(self.now)
        [plan] = self.world.run(handle, 4 * self._chunks).stores
        self.world.done(plan)
        self.world.end(handle)
        return [
            sorted(set(tier.stores) - old) for tier, old in zip(self.tiers, before, strict=True)
        ]

    def wait(self, seconds: float, *ended: tuple[StubTier, Finished]) -> None:
        """Let time pass, then tiers report."""
        self.now += seconds
        for tier, finished in ended:
            tier.done.append(finished)
        self.world.pool.advance(self.now)
        self.world.idle()

    def feed(self, count: int, seconds: float) -> None:
        """Store so often; the first tier takes so long for each."""
        for _ in range(count):
            [job] = self.store()[0]
            self.wait(seconds, (self.tiers[0], Finished(job=job, success=True)))

    def pinned(self) -> int:
        table = self.world.pool.host.table
        return int((table.refs[: table.count] > 0).sum())


def test_a_tier_that_takes_too_long_gets_no_store_until_it_rested() -> None:
    node = Node(StubTier())
    node.feed(10, 0.1)
    assert node.store() == [[]]
    assert node.world.pool.below.dropped == [1]
    assert node.pinned() == 0
    assert not node.world.idle().busy
    node.wait(60.0)
    assert len(node.store()[0]) == 1


def test_a_tier_that_keeps_up_gets_every_store() -> None:
    node = Node(StubTier())
    node.feed(40, 0.009)
    assert node.world.pool.below.dropped == [0]


def test_the_same_time_for_larger_chunks_is_no_pressure() -> None:
    node = Node(StubTier(), slot_bytes=16 * MIB)
    node.feed(20, 0.1)
    assert node.world.pool.below.dropped == [0]


def test_a_remote_tier_may_take_five_times_as_long() -> None:
    local, remote = Node(StubTier()), Node(StubTier(locality="remote"))
    for node in (local, remote):
        node.feed(10, 0.035)
    assert local.store() == [[]]
    assert len(remote.store()[0]) == 1


def test_only_the_tier_that_cannot_keep_up_is_spared() -> None:
    slow, fast = StubTier(), StubTier(locality="remote")
    node = Node(slow, fast)
    for _ in range(10):
        [[one], [other]] = node.store()
        node.wait(0.0, (fast, Finished(job=other, success=True)))
        node.wait(0.1, (slow, Finished(job=one, success=True)))
    [gone, there] = node.store()
    assert not gone
    assert len(there) == 1
    assert node.world.pool.below.dropped == [1, 0]


def test_loads_from_a_tier_under_pressure_are_never_dropped() -> None:
    tier = StubTier()
    node = Node(tier)
    node.feed(10, 0.1)
    key = hashes_of(0, 1)[0]
    tier.answers[0, key] = Verdict.HIT
    assert node.world.ask().tokens is None
    node.world.idle()
    assert list(tier.loads.values()) == [[(0, key)]]


def test_half_of_the_stores_go_where_the_time_is_twice_the_high_mark() -> None:
    node = Node(StubTier())
    node.feed(10, 0.020)
    sent = sum(len(node.store()[0]) for _ in range(CHUNKS))
    assert abs(sent - CHUNKS // 2) <= 1
    assert node.world.pool.below.dropped == [CHUNKS - sent]


def test_what_a_tier_had_already_says_nothing_of_its_speed() -> None:
    tier = StubTier()
    node = Node(tier, chunks=64)
    for _ in range(30):
        [job] = node.store()[0]
        node.wait(0.5, (tier, Finished(job=job, success=True, size=0)))
    assert node.world.pool.below.dropped == [0]
    # Two MiB in 0.1 s are slow, sixty-four would not be.
    for _ in range(10):
        [job] = node.store()[0]
        node.wait(0.1, (tier, Finished(job=job, success=True, size=2 * MIB)))
    assert node.store() == [[]]


def test_a_tier_that_times_itself_is_believed_rather_than_the_step() -> None:
    tier = StubTier()
    node = Node(tier)
    for _ in range(10):
        [job] = node.store()[0]
        node.wait(5.0, (tier, Finished(job=job, success=True, seconds=0.001)))
    assert len(node.store()[0]) == 1


@pytest.mark.parametrize(("medium", "sent"), [("storage", 0), ("cpu", 1)])
def test_three_failures_in_a_row_are_pressure_on_storage_only(medium: str, sent: int) -> None:
    tier = StubTier(medium=medium)
    node = Node(tier)
    for _ in range(3):
        [job] = node.store()[0]
        node.wait(0.001, (tier, Finished(job=job, success=False)))
    assert len(node.store()[0]) == sent
    assert node.pinned() == sent


def test_a_store_that_a_reset_cut_short_is_no_failure() -> None:
    class Draining(StubTier):
        def drain(self) -> None:
            self.done += [Finished(job=job, success=False) for job in self.stores]

    tier = Draining()
    node = Node(tier)
    for _ in range(3):
        node.store()
    node.world.engine.reset()
    assert not node.world.pool.below.busy
    assert len(node.store()[0]) == 1


def test_without_the_bytes_of_a_chunk_nothing_is_measured() -> None:
    node = Node(StubTier(), slot_bytes=0)
    node.feed(20, 9.0)
    assert len(node.store()[0]) == 1
    with pytest.raises(ValueError, match="-1 bytes"):
        PartitionPool(slot_bytes=-1)


def test_time_that_runs_backwards_is_taken_as_standing_still() -> None:
    pool = PartitionPool()
    pool.advance(5.0)
    pool.advance(3.0)
    assert pool.below.now == 5.0
