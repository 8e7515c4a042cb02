"""Bytes stay within the policy's capacity, the node's budget and the file system's reserve."""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.unit.tiers.disk.harness import Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.index import DiskIndex, Pack
from kvoffload_agent.tiers.disk.io import Files

Life = Callable[..., Disk]
# One chunk of 10,000 bytes: a header, three blocks, and one more that the file system may take.
PACK = 5 * 4096


def _put(disk: Disk, number: int) -> bool:
    return disk.put([key(number)], slots(number % 64)).success


async def test_b45_a_policys_capacity_holds_whatever_the_file_system_has_free(life: Life) -> None:
    disk = await life(capacity=3 * PACK).adopted()
    for number in range(20):
        assert _put(disk, number)
        assert disk.on_disk <= 3 * PACK
        assert disk.store.index.used_by("team-a/policy") <= 3 * PACK
    assert disk.has(key(19))
    assert not disk.has(key(0))
    assert disk.store.counters.evicted == 20 - len(disk.packs)


async def test_the_nodes_budget_holds_over_all_buckets(life: Life) -> None:
    disk = await life(budget=3 * PACK).adopted()
    other = disk.partition("team-b", "e" * 64)
    for number in range(6):
        _put(disk, number)
        disk.put([key(number)], slots(0), other)
        assert disk.on_disk <= 3 * PACK


async def test_a_pod_whose_policy_gives_no_disk_uses_none(life: Life) -> None:
    for capacity in (None, 0):
        disk = await life(capacity=capacity).adopted()
        assert not _put(disk, 1)
        assert disk.store.counters.not_stored == {"no capacity": 1}
        assert disk.paths == []


async def test_a_capacity_that_is_taken_away_is_given_back_and_serves_nothing(life: Life) -> None:
    disk = await life().adopted()
    for number in range(8):
        _put(disk, number)
    disk.capacity = 2 * PACK
    disk.tier.keep_within()
    disk.settle()
    assert disk.on_disk <= 2 * PACK
    assert disk.has(key(7))
    disk.capacity = None  # not known yet: nothing is served, and nothing lost
    assert not disk.has(key(7))
    disk.tier.keep_within()
    disk.settle()
    assert disk.on_disk
    disk.capacity = 0
    assert not disk.has(key(7))
    disk.tier.keep_within()
    disk.settle()
    assert disk.paths == []


async def test_a_smaller_budget_evicts_what_was_adopted(life: Life) -> None:
    disk = await life().adopted()
    for number in range(8):
        _put(disk, number)
    again = await life(budget=3 * PACK).adopted()
    again.settle()
    assert again.on_disk <= 3 * PACK
    assert again.has(key(7))
    assert not again.has(key(0))


async def test_files_that_are_not_adopted_yet_count(life: Life) -> None:
    disk = await life().adopted()
    for number in range(3):
        _put(disk, number)
    for bound in ({"budget": 3 * PACK}, {"capacity": 3 * PACK}):
        again = life(**bound)
        await again.store.open()
        assert not _put(again, 9)
        await again.store.adopt()
        assert _put(again, 9)
        assert again.on_disk <= 3 * PACK
        again.settle()


async def test_b63_use_and_not_access_times_decide_what_leaves(life: Life) -> None:
    disk = await life(capacity=4 * PACK).adopted()
    for number in range(4):
        _put(disk, number)
    for path in disk.paths:
        os.utime(path, (0, 0))
    assert disk.get([key(0)], slots(40)).success
    _put(disk, 4)
    assert disk.has(key(0))
    assert not disk.has(key(1))


async def test_a_chunk_larger_than_the_capacity_evicts_nothing(life: Life) -> None:
    disk = await life(capacity=2 * PACK).adopted()
    _put(disk, 0)
    assert not disk.put([key(number) for number in range(1, 9)], slots(*range(1, 9))).success
    assert disk.has(key(0))
    assert disk.store.counters.not_stored == {"no room": 8}


async def test_the_file_systems_reserve_is_left_free(life: Life, slab: Slab) -> None:
    disk = life()
    stats = os.statvfs(disk.root.parent)
    everything = stats.f_blocks * stats.f_frsize
    disk = await life(files=Files(disk.root, reserve=everything)).adopted()
    assert not _put(disk, 0)
    assert disk.paths == []


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 9), st.booleans()),
        max_size=40,
    )
)
@example([("b", 0, 1, False), ("b", 0, 1, False), ("a", 0, 1, True), ("a", 0, 1, True)])
def test_the_index_counts_what_it_holds(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    index = DiskIndex()
    for number, (folder, first, size, remove) in enumerate(steps):
        if remove and index.packs:
            [victim, *_] = index.victims(1)
            assert victim is index.all()[0]
            assert index.begin_removal(victim)
            assert not index.begin_removal(victim)
            index.removed(victim.name)
        keys = [key(first), key(first + 1)]
        pack = Pack(
            name=str(number),
            folder=folder,
            bucket=folder,
            bytes=size,
            data_at=0,
            chunk_bytes=1,
            keys=keys,
            sums=[0, 0],
        )
        index.add(pack)
        held = index.all()
        assert index.used == index.kept == sum(pack.bytes for pack in held)
        for bucket in "ab":
            own = [pack for pack in held if pack.bucket == bucket]
            assert index.used_by(bucket) == sum(pack.bytes for pack in own)
        for one in held:
            for chunk in one.keys:
                place = index.find(one.folder, chunk)
                assert place is None or place.pack in held
