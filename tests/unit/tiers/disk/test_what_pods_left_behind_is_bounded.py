"""Chunks of an earlier life of the agent: of pods that came back, and of pods that did not."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.tiers.disk.harness import Disk, key, slots

from kvoffload_agent.tiers.disk.adopt import BATCH_PACKS

Life = Callable[..., Disk]
# One chunk of 10,000 bytes: a header and three blocks; a store wants one more to be free.
FILE = 4 * 4096
STORE = FILE + 4096


def _put(disk: Disk, number: int, **options: object) -> bool:
    return disk.put([key(number)], slots(number % 64), **options).success


async def test_what_is_adopted_counts_against_the_policy_that_its_pods_have_now(
    life: Life,
) -> None:
    disk = await life().adopted()
    tier = disk.partition("team-a", "f" * 64, bucket="team-a/old")
    for number in range(4):
        _put(disk, number, tier=tier)
    again = life(capacity=2 * FILE)
    await again.store.open()
    again.tier.keep_within()  # an engine was there before anything was adopted
    await again.store.adopt()
    assert again.store.index.used_by("team-a/old") == 0
    assert again.store.index.used_by("team-a/policy") == 4 * FILE
    again.tier.keep_within()
    assert again.store.index.used_by("team-a/policy") == 2 * FILE
    assert [again.has(key(number)) for number in range(4)] == [False, False, True, True]


async def test_chunks_of_pods_that_never_come_back_stay_within_the_nodes_budget_and_leave_first(
    life: Life,
) -> None:
    disk = await life().adopted()
    gone = disk.partition("team-gone", "e" * 64)
    for number in range(8):
        _put(disk, number, tier=gone)
    budget = disk.on_disk + 4096 + STORE
    again = await life(budget=budget).adopted()
    assert again.store.index.used_by("team-gone/policy") == 8 * FILE
    for number in range(8):
        assert _put(again, number)
        assert again.on_disk <= budget
    assert all(again.has(key(number)) for number in range(8))
    assert again.store.index.used_by("team-gone/policy") <= FILE


async def test_a_smaller_budget_takes_the_oldest_of_what_an_earlier_life_left(life: Life) -> None:
    disk = await life().adopted()
    count = BATCH_PACKS + 8
    for number in range(count):
        _put(disk, number)
    budget = disk.on_disk - 4 * FILE
    again = await life(budget=budget).adopted()
    again.settle()
    assert again.on_disk <= budget
    assert [number for number in range(count) if not again.has(key(number))] == [0, 1, 2, 3]


async def test_a_store_before_all_is_adopted_evicts_nothing_that_may_be_newer(life: Life) -> None:
    disk = await life().adopted()
    for number in range(3):
        _put(disk, number)
    again = life(budget=disk.on_disk + 2 * STORE)
    await again.store.open()
    assert _put(again, 50)
    assert _put(again, 51)
    assert not _put(again, 52)
    assert again.store.counters.not_stored == {"no room": 1}
    await again.store.adopt()
    assert _put(again, 52)
    assert not again.has(key(0))
    assert again.has(key(2))
