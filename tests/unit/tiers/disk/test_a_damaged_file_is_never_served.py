"""Whatever happened to a file: its chunks are not served, it is counted and removed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.tiers.disk.harness import Disk, Slab, key, slots

from kvoffload_agent.tiers.disk import layout

Life = Callable[..., Disk]


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - layout.ALIGN)


def _cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def _flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[layout.ALIGN + 7] ^= 0x10
    path.write_bytes(raw)


def _header_flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[40] ^= 0x01
    path.write_bytes(raw)


def _swapped(path: Path) -> None:
    """Two chunks change places: right bytes under the wrong key."""
    raw = path.read_bytes()
    at, size = layout.ALIGN, 10_000
    first, second = raw[at : at + size], raw[at + size : at + 2 * size]
    path.write_bytes(raw[:at] + second + first + raw[at + 2 * size :])


def _linked(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _hard_linked(path: Path) -> None:
    path.parent.parent.with_name("second").hardlink_to(path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


async def _stored(disk: Disk) -> Path:
    for number in range(2):
        disk.slab.fill(number, number)
    disk.put([key(0), key(1)], slots(0, 1))
    [path] = disk.paths
    return path


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_truncated, "truncated"),
        (_cut_to_nothing, "truncated"),
        (_flipped, "checksum"),
        (_swapped, "checksum"),
        (_zeros, "checksum"),
        (_linked, "replaced"),
        (_hard_linked, "replaced"),
        (_pipe, "replaced"),
    ],
)
async def test_a_file_changed_under_a_running_agent(
    life: Life, harm: Callable[[Path], None], reason: str
) -> None:
    disk = await life().adopted()
    path = await _stored(disk)
    harm(path)
    found = disk.get([key(0)], slots(20))
    assert not found.success
    assert found.arrived == frozenset()
    assert not disk.has(key(0))
    assert not disk.has(key(1))
    assert disk.store.counters.rejected == {reason: 1}
    disk.settle()
    assert path not in disk.paths


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_truncated, "truncated"),
        (_cut_to_nothing, "truncated"),
        (_header_flipped, "checksum"),
        (_zeros, "foreign"),
        (_linked, "replaced"),
        (_hard_linked, "replaced"),
        (_pipe, "replaced"),
    ],
)
async def test_a_file_changed_while_no_agent_ran_is_not_adopted(
    life: Life, harm: Callable[[Path], None], reason: str
) -> None:
    disk = await life().adopted()
    path = await _stored(disk)
    disk.close()
    harm(path)
    again = await life(files=None).adopted()
    assert again.store.counters.adopted == 0
    assert again.store.counters.rejected[reason] == 1
    assert not again.has(key(0))
    assert path not in again.paths


@pytest.mark.parametrize("harm", [_flipped, _swapped])
async def test_changed_bytes_of_an_adopted_file_are_found_when_they_are_loaded(
    life: Life, harm: Callable[[Path], None]
) -> None:
    path = await _stored(await life().adopted())
    harm(path)
    again = await life().adopted()
    assert again.store.counters.adopted == 2
    assert not again.get([key(0)], slots(20)).success
    assert again.store.counters.rejected == {"checksum": 1}
    assert not again.has(key(0))


async def test_a_file_of_another_partition_or_name_is_not_adopted(life: Life) -> None:
    disk = await life().adopted()
    path = await _stored(disk)
    other = disk.root / layout.folder_name("team-b", "f" * 64)
    other.mkdir(mode=0o700)
    shutil.copy(path, other / path.name)
    shutil.copy(path, path.with_name(layout.pack_name(started_ns=1, number=1)))
    again = await life().adopted()
    assert again.store.counters.rejected == {"foreign": 2}
    assert again.store.counters.adopted == 2
    assert again.paths == [path]


async def test_a_write_that_was_cut_off_by_sigkill_leaves_nothing(life: Life) -> None:
    disk = await life().adopted()
    path = await _stored(disk)
    path.with_name("0" * 16 + "-00000001.pack.tmp").write_bytes(b"half")
    again = await life().adopted()
    assert again.store.counters.rejected == {"unfinished": 1}
    assert again.paths == [path]


async def test_b62_a_file_removed_by_hand_costs_one_failed_read(life: Life, slab: Slab) -> None:
    disk = await life().adopted()
    path = await _stored(disk)
    path.unlink()
    assert not disk.get([key(0)], slots(20)).success
    assert disk.store.counters.rejected == {"vanished": 1}
    assert disk.store.counters.not_loaded == {"vanished": 1}
    assert not disk.has(key(0))
    assert not disk.has(key(1))
    assert disk.put([key(0)], slots(0)).success
    disk.now += 1_000
    assert disk.get([key(0)], slots(21)).success
    assert slab.holds(21, 0)
