"""Which segments leave when host memory is given back, and that a mapped one stays whole."""

from __future__ import annotations

import mmap
import os
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.builders import hashes_of

from kvoffload_agent.memory.arena import Arena, Row
from kvoffload_agent.memory.guard import Refuse
from kvoffload_agent.memory.snapshot import GIB, Snapshot
from kvoffload_agent.partitions.partition import Geometry, Partition, PartitionKey
from kvoffload_agent.partitions.shrink import Candidate, Holder, plan
from kvoffload_agent.scheduling import make_pool
from kvoffload_agent.tiers.host import EvictionPolicyName, HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool

ROW = 64 * 1024

candidates = st.builds(
    Candidate,
    bytes=st.integers(min_value=1, max_value=100),
    heat=st.floats(min_value=0, max_value=9, allow_nan=False),
)
holders = st.lists(
    st.builds(
        lambda rows, pending: Holder(kept=sum(row.bytes for row in rows) + pending, rows=rows),
        st.lists(candidates, max_size=6),
        st.integers(min_value=0, max_value=50),
    ),
    max_size=4,
)


@given(holders=holders, excess=st.integers(min_value=-5, max_value=1500))
def test_enough_leaves_or_everything_and_nothing_leaves_twice(
    holders: list[Holder], excess: int
) -> None:
    leaving = plan(holders, excess)
    assert len(set(leaving)) == len(leaving)
    taken = [holders[holder].rows[row].bytes for holder, row in leaving]
    if sum(taken) < excess:
        assert len(leaving) == sum(len(holder.rows) for holder in holders)
    elif taken:
        assert sum(taken[:-1]) < excess, "the last one was needed"
    else:
        assert excess <= 0


@given(holders=holders, excess=st.integers(min_value=1, max_value=1500))
def test_what_stays_of_a_partition_is_at_least_as_warm_as_what_left(
    holders: list[Holder], excess: int
) -> None:
    leaving = plan(holders, excess)
    for number, holder in enumerate(holders):
        gone = [row for at, row in leaving if at == number]
        heats = [holder.rows[row].heat for row in gone]
        assert heats == sorted(heats)
        stays = [holder.rows[row].heat for row in range(len(holder.rows)) if row not in gone]
        if heats and stays:
            assert max(heats) <= min(stays)
        for earlier, later in pairwise(gone):
            if holder.rows[earlier].heat == holder.rows[later].heat:
                assert earlier > later, "of equally cold ones the newest goes first"


def test_the_partition_that_keeps_most_gives_first_although_its_chunks_are_warmer() -> None:
    small = Holder(kept=10, rows=[Candidate(bytes=10, heat=0)])
    large = Holder(kept=30, rows=[Candidate(bytes=10, heat=8), Candidate(bytes=20, heat=9)])
    assert plan([small, large], 10) == [(1, 0)]
    # Its last row is the larger one still.
    assert plan([small, large], 11) == [(1, 0), (1, 1)]


def test_rows_that_engines_have_not_mapped_yet_count_and_do_not_stop_the_others() -> None:
    growing = Holder(kept=64, rows=[])
    full = Holder(kept=10, rows=[Candidate(bytes=10, heat=1)])
    assert plan([growing, full], 5) == [(1, 0)]


# --- the heat of real chunks ---------------------------------------------------------------------


def _store(
    pool: PartitionPool, name: int, count: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    client, request = pool.join(), pool.open()
    run = KeyRun(group=0, hashes=hashes_of(name, count), positions=np.arange(1, count + 1))
    grant = pool.offer(client, request, [run])
    assert grant is not None
    pool.stored(request, grant.written(), success=True)
    pool.finish(request)
    return grant.written()


def _load(pool: PartitionPool, name: int, count: int) -> None:
    request = pool.open()
    run = KeyRun(group=0, hashes=hashes_of(name, count), positions=np.arange(1, count + 1))
    slots = pool.find(pool.join(), 0, run.hashes)
    pool.pin(request, [run], [slots])
    pool.unpin(slots, success=True)
    pool.finish(request)


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_span_that_was_loaded_again_is_warmer_than_a_newer_one(
    policy: EvictionPolicyName,
) -> None:
    pool = PartitionPool(HostConfig(eviction_policy=policy))
    pool.add_slots(12)
    for name in range(2):
        assert _store(pool, name, 4).tolist() == list(range(4 * name, 4 * name + 4))
    old, new, empty = pool.heats([(0, 4), (4, 8), (8, 12)])
    assert 0 == empty < old < new
    _load(pool, 0, 4)
    old, new, _ = pool.heats([(0, 4), (4, 8), (8, 12)])
    assert new < old


def test_an_empty_slot_is_colder_than_the_oldest_chunk() -> None:
    pool = PartitionPool()
    pool.add_slots(8)
    _store(pool, 0, 6)
    full, half = pool.heats([(0, 4), (4, 8)])
    assert half < full


def test_a_pool_without_a_chunk_is_cold_everywhere() -> None:
    pool = PartitionPool()
    pool.add_slots(4)
    assert pool.heats([(0, 2), (2, 4)]) == [0.0, 0.0]
    assert pool.heats([]) == []


# --- a partition of real segments ----------------------------------------------------------------


class Engine:
    """A session that maps every row at once and keeps it until it is willing to let go."""

    bucket, capacity, disk_capacity, min_reuse_count, complete = "b", None, None, 0, True

    def __init__(self) -> None:
        self.held: dict[int, mmap.mmap] = {}
        self.asked: set[int] = set()

    def send_map(self, row: Row) -> None:
        segment = row.segments[0]
        self.held[segment.id] = mmap.mmap(segment.fd, segment.bytes)

    def send_unmap(self, row: Row) -> None:
        self.asked.add(row.segments[0].id)

    def has_mapped(self, row: Row) -> bool:
        return row.segments[0].id in self.held

    holds = has_mapped


async def _grown(partition: Partition, arena: Arena, engine: Engine, *, rows: int) -> None:
    for _ in range(rows):
        row = await arena.grow(ranks=1, row_bytes=ROW, segment_bytes=4 * ROW, budget=None)
        assert not isinstance(row, Refuse)
        partition.pending.append(row)
        engine.send_map(row)
        assert partition.admit() == 4


async def test_the_row_whose_chunks_were_used_least_leaves_and_the_others_keep_their_chunks() -> (
    None
):
    arena = Arena(snapshot=lambda: Snapshot(levels=(), available=4 * GIB, total=8 * GIB))
    partition = Partition(
        key=PartitionKey(namespace="n", fingerprint="f"),
        geometry=Geometry(row_bytes=ROW, ranks=1),
        make_pool=lambda partition: make_pool(partition, 0),
    )
    engine = Engine()
    partition.join(engine)
    await _grown(partition, arena, engine, rows=3)
    pool = partition.pool
    assert isinstance(pool, PartitionPool)
    for name in range(3):
        _store(pool, name, 4)
    _load(pool, 0, 4)
    ((_, row),) = plan([partition.holder()], 1)
    assert row == 1, "the second one: the first was loaded again, the third is newer"
    leaving = partition.rows[row].segments[0]
    engine.held[leaving.id][:4] = b"kept"
    partition.give_up([row])
    assert partition.settle_leaving() == []
    assert engine.asked == {leaving.id}
    # Registered memory must stay as it is until the engine lets go: nothing is punched.
    assert engine.held[leaving.id][:4] == b"kept"
    assert os.fstat(leaving.fd).st_blocks * 512 == os.fstat(leaving.fd).st_size == 4 * ROW
    assert (pool.find(pool.join(), 0, hashes_of(1, 4)) == -1).all()
    for name in (0, 2):
        assert (pool.find(pool.join(), 0, hashes_of(name, 4)) >= 0).all()
    engine.held.pop(leaving.id).close()
    (gone,) = partition.settle_leaving()
    arena.close(gone)
    assert arena.usage.mapped == 8 * ROW
    for held in engine.held.values():
        held.close()
    arena.close_all()


def test_the_slots_of_a_row_from_the_middle_are_never_used_again() -> None:
    pool = PartitionPool()
    pool.add_slots(12)
    _store(pool, 0, 2)
    assert pool.retire_slots(4, 8) == 0
    assert pool.free_slots == 6
    taken = _store(pool, 1, 6)
    assert not set(taken.tolist()) & set(range(4, 8))
    assert pool.free_slots == 0
