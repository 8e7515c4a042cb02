"""What leaves the disk counts until it has, and directories count as files do."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.tiers.disk.harness import Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.io import Files, taken
from kvoffload_agent.tiers.disk.removal import RETRY_SECONDS

Life = Callable[..., Disk]


class ReadOnlyFiles(Files):
    """Fake: no file can be removed while ``stuck``, as on a disk remounted read-only."""

    stuck = False

    def remove(self, folder: str, name: str) -> None:
        if self.stuck:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().remove(folder, name)


async def test_a_file_that_cannot_be_removed_counts_and_is_tried_again(
    life: Life, tmp_path: Path
) -> None:
    files = ReadOnlyFiles(tmp_path / "disk", reserve=0)
    disk = await life(files=files).adopted()
    disk.put([key(0)], slots(0))
    used = disk.store.used
    files.stuck = True
    disk.capacity = 0
    disk.tier.keep_within()
    assert not disk.has(key(0))
    disk.capacity = 1 << 40
    disk.put([key(1)], slots(1))  # by now the removal was tried: a later file is here
    assert disk.store.used > used
    files.stuck = False
    disk.now += RETRY_SECONDS / 2
    disk.store.tick()
    assert len(disk.paths) == 2
    disk.now += RETRY_SECONDS / 2
    disk.store.tick()
    disk.settle()
    assert len(disk.paths) == 1
    assert disk.store.used == disk.on_disk


async def test_a_victim_that_cannot_be_removed_is_tried_again_too(
    life: Life, tmp_path: Path
) -> None:
    files = ReadOnlyFiles(tmp_path / "disk", reserve=0)
    disk = await life(files=files, capacity=5 * 4096).adopted()
    disk.put([key(0)], slots(0))
    files.stuck = True
    assert disk.put([key(1)], slots(1)).success
    assert len(disk.paths) == 2
    files.stuck = False
    disk.now += RETRY_SECONDS
    disk.store.tick()
    disk.settle()
    assert len(disk.paths) == 1
    assert disk.has(key(1))


async def test_directories_count_and_leave_with_their_last_file(life: Life) -> None:
    disk = await life().adopted()
    other = disk.partition("team-b", "e" * 64)
    disk.put([key(0)], slots(0))
    disk.put([key(0)], slots(0), other)
    assert disk.folders > 0
    assert disk.store.used == disk.on_disk
    again = await life().adopted()
    assert again.store.used == again.on_disk
    again.tier.drain()
    again.settle()
    assert len([path for path in again.root.iterdir() if path.is_dir()]) == 1
    assert again.store.used == again.on_disk


class TidiedMeanwhile(Files):
    """Fake: the keeper wants to remove a directory just when a file is about to be made in it."""

    def _create(self, name: str, folder: int) -> int:
        [empty] = self.folders()
        keeper = threading.Thread(target=self.tidy, args=[empty], daemon=True)
        keeper.start()
        keeper.join(0.05)  # it waits for the file; else it would be done long before
        return super()._create(name, folder)


async def test_a_directory_is_not_removed_between_its_making_and_its_first_file(
    life: Life, tmp_path: Path
) -> None:
    disk = await life(files=TidiedMeanwhile(tmp_path / "disk", reserve=0)).adopted()
    assert disk.put([key(0)], slots(0)).success
    assert disk.get([key(0)], slots(20)).success


def test_a_file_counts_with_its_length_where_blocks_are_allocated_late() -> None:
    late: Any = SimpleNamespace(st_blocks=1, st_size=65_536)
    assert taken(late) == 65_536
    usual: Any = SimpleNamespace(st_blocks=136, st_size=65_536)
    assert taken(usual) == 136 * 512


async def test_a_store_says_how_many_bytes_it_moved(life: Life, slab: Slab) -> None:
    disk = await life().adopted()
    size = slab.ranks * slab.row_bytes
    assert disk.put([key(0), key(1)], slots(0, 1)).size == 2 * size
    assert disk.put([key(0), key(1), key(2)], slots(0, 1, 2)).size == size
    assert disk.put([key(0), key(1)], slots(0, 1)).size == 0
    assert disk.get([key(0)], slots(20)).size is None
    disk.capacity = 0
    refused = disk.put([key(9)], slots(9))
    assert (refused.success, refused.size) == (False, 0)
