"""Chunks go to the disk and come back as they were, in this life of the agent and the next."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.tiers.disk.harness import MIB, Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.blocks import BUFFER_BYTES
from kvoffload_agent.tiers.disk.directory import DiskError
from kvoffload_agent.tiers.disk.io import Files

Life = Callable[..., Disk]


def _stored(disk: Disk, count: int = 8, tier: object = None) -> list[tuple[int, bytes]]:
    keys = [key(number) for number in range(count)]
    for number in range(count):
        disk.slab.fill(number, number)
    assert disk.put(keys, slots(*range(count)), tier).success
    return keys


async def test_every_chunk_of_a_store_comes_back_in_any_order(life: Life, slab: Slab) -> None:
    disk = await life().adopted()
    keys = _stored(disk)
    assert len(disk.paths) == 1
    found = disk.get([keys[5], keys[0], keys[7]], slots(40, 41, 42))
    assert found.success
    assert found.arrived == {keys[5], keys[0], keys[7]}
    assert slab.holds(40, 5)
    assert slab.holds(41, 0)
    assert slab.holds(42, 7)
    assert disk.store.counters.stored == 8
    assert disk.store.counters.loaded == 3


@pytest.mark.parametrize("row_bytes", [128, 4096, BUFFER_BYTES - 128, BUFFER_BYTES + 4096])
async def test_rows_of_any_size_come_back(tmp_path: Path, row_bytes: int) -> None:
    slab = Slab(count=6, ranks=2, row_bytes=row_bytes)
    disk = await Disk(root=tmp_path / "disk", slab=slab).adopted()
    keys = _stored(disk, 3)
    assert disk.get(keys, slots(3, 4, 5)).success
    assert [slab.holds(slot, slot - 3) for slot in (3, 4, 5)] == [True] * 3
    disk.close()
    slab.close()


async def test_many_small_chunks_are_few_files(tmp_path: Path) -> None:
    slab = Slab(count=5_000, ranks=1, row_bytes=128)
    disk = await Disk(root=tmp_path / "disk", slab=slab).adopted()
    assert disk.put([key(number) for number in range(5_000)], slots(*range(5_000))).success
    assert len(disk.paths) == 2
    disk.close()
    slab.close()


async def test_what_is_there_is_not_written_again(life: Life) -> None:
    disk = await life().adopted()
    keys = _stored(disk, 4)
    assert disk.put([*keys, key(9)], slots(0, 1, 2, 3, 9)).success
    assert disk.store.counters.stored == 5
    assert len(disk.packs[-1].keys) == 1


async def test_a_restart_finds_every_chunk_and_its_age(life: Life, slab: Slab) -> None:
    disk = await life().adopted()
    for number in range(6):
        slab.fill(number, number)
        disk.put([key(number)], slots(number))
    names = [pack.name for pack in disk.packs]
    again = await life().adopted()
    assert again.store.state == "ready"
    assert again.store.counters.adopted == 6
    assert not again.store.counters.rejected
    assert [pack.name for pack in again.packs] == names
    assert again.store.index.used == again.on_disk
    assert again.get([key(3)], slots(33)).success
    assert slab.holds(33, 3)


async def test_what_is_written_during_adoption_is_warmer_than_what_is_adopted(life: Life) -> None:
    _stored(await life().adopted(), 2)
    again = life()
    await again.store.open()
    assert not again.has(key(0))
    again.put([key(50)], slots(5))
    await again.store.adopt()
    assert [pack.keys[0] for pack in again.packs] == [key(0), key(50)]
    assert again.has(key(0))
    assert again.has(key(50))


async def test_partitions_do_not_see_each_other(life: Life) -> None:
    disk = await life().adopted()
    [first] = _stored(disk, 1)
    for namespace, fingerprint in (("team-b", "f" * 64), ("team-a", "e" * 64)):
        other = disk.partition(namespace, fingerprint)
        assert not disk.has(first, other)
    assert disk.has(first)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
async def test_b65_only_the_agent_can_read_whatever_the_umask(life: Life, umask: int) -> None:
    before = os.umask(umask)
    try:
        disk = await life().adopted()
        _stored(disk, 1)
    finally:
        os.umask(before)
    folders = [disk.root, *(path for path in disk.root.iterdir() if path.is_dir())]
    files = [*disk.paths, disk.root / "lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


async def test_a_reset_forgets_this_partition_on_disk_and_no_other(life: Life) -> None:
    disk = await life().adopted()
    [first] = _stored(disk, 1)
    other = disk.partition("team-b", "e" * 64)
    disk.put([first], slots(0), other)
    disk.tier.drain()
    assert not disk.has(first)
    disk.settle()
    assert len(disk.paths) == 1
    assert disk.has(first, other)


async def test_a_reset_before_adoption_keeps_old_chunks_from_coming_back(life: Life) -> None:
    _stored(await life().adopted(), 2)
    again = life()
    await again.store.open()
    again.tier.drain()
    await again.store.adopt()
    assert not again.has(key(0))
    again.settle()
    assert again.paths == []


async def test_two_agents_do_not_share_a_directory(life: Life) -> None:
    disk = await life().adopted()
    with pytest.raises(DiskError, match="another agent uses"):
        Files(disk.root).open()


async def test_a_directory_that_is_a_link_is_not_used(tmp_path: Path, life: Life) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "disk").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DiskError, match="name a directory"):
        await life().store.open()


async def test_chunks_survive_a_store_of_the_largest_pack(life: Life) -> None:
    slab = Slab(count=3, ranks=1, row_bytes=40 * MIB)
    disk = await life(slab=slab).adopted()
    _stored(disk, 2)
    assert len(disk.paths) == 2
    assert disk.get([key(1)], slots(2)).success
    assert slab.holds(2, 1)
    slab.close()
