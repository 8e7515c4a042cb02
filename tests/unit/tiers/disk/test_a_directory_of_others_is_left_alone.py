"""What lies where an agent's directory or that of a partition belongs, and is neither."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.tiers.disk.harness import Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.directory import DiskError
from kvoffload_agent.tiers.disk.io import Files

Life = Callable[..., Disk]


def test_a_directory_with_what_no_agent_wrote_is_neither_closed_to_others_nor_filled(
    tmp_path: Path,
) -> None:
    root = tmp_path / "shared"
    root.mkdir(mode=0o755)
    (root / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(DiskError, match=r"such as 'model.safetensors': name a directory"):
        Files(root).open()
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert [path.name for path in root.iterdir()] == ["model.safetensors"]


def test_a_file_system_of_its_own_is_taken_with_what_mkfs_left_there(tmp_path: Path) -> None:
    root = tmp_path / "mount"
    (root / "lost+found").mkdir(parents=True)
    files = Files(root)
    files.open()
    files.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_used_even_by_root(tmp_path: Path) -> None:
    root = tmp_path / "another"
    root.mkdir()
    os.chown(root, 65532, -1)
    with pytest.raises(DiskError, match="belongs to uid 65532"):
        Files(root).open()
    assert list(root.iterdir()) == []


def _link(path: Path) -> None:
    target = path.parent.parent / "target"
    target.mkdir()
    path.symlink_to(target)


def _file(path: Path) -> None:
    path.write_bytes(b"a file")


@pytest.mark.parametrize("replace", [_link, _file])
async def test_a_partitions_directory_that_was_replaced_is_not_followed_and_costs_one_store(
    life: Life, slab: Slab, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    disk = await life().adopted()
    disk.put([key(0)], slots(0))
    folder = disk.root / disk.tier.folder
    folder.rename(tmp_path / "moved")
    replace(folder)
    assert not disk.get([key(0)], slots(20)).success
    assert disk.store.counters.rejected == {"replaced": 1}
    assert not disk.has(key(0))
    disk.settle()
    slab.fill(1, 1)
    assert disk.put([key(1)], slots(1)).success
    assert disk.get([key(1)], slots(21)).success
    assert slab.holds(21, 1)
    assert folder.is_dir()
    assert not folder.is_symlink()
    assert not disk.store.transfers.stores.reason


@pytest.mark.parametrize("replace", [_link, _file])
async def test_a_directory_that_was_replaced_before_a_store_does_not_stop_other_partitions(
    life: Life, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    disk = await life().adopted()
    replace(disk.root / disk.tier.folder)
    assert not disk.put([key(0)], slots(0)).success
    assert disk.store.counters.not_stored == {"replaced": 1}
    assert disk.put([key(0)], slots(0)).success
    assert disk.put([key(0)], slots(0), disk.partition("team-b", "e" * 64)).success


@pytest.mark.parametrize("replace", [_link, _file])
async def test_a_directory_that_was_replaced_while_no_agent_ran_is_removed_at_the_start(
    life: Life, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    disk = await life().adopted()
    disk.put([key(0)], slots(0))
    folder = disk.root / disk.tier.folder
    disk.close()
    folder.rename(tmp_path / "moved")
    replace(folder)
    again = await life().adopted()
    assert again.store.counters.rejected == {"replaced": 1}
    assert again.store.counters.adopted == 0
    assert not folder.is_symlink()
    assert not folder.exists()


class UnreadableOnce(Files):
    """Fake: the file system does not answer what it has free, the first time."""

    asked = 0

    def available(self) -> int:
        self.asked += 1
        if self.asked == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().available()


async def test_an_agent_that_could_not_look_at_its_disk_does_not_lock_itself_out(
    life: Life, tmp_path: Path
) -> None:
    disk = life(files=UnreadableOnce(tmp_path / "disk", reserve=0))
    with pytest.raises(OSError, match="Input/output error"):
        await disk.store.open()
    await disk.adopted()
    assert disk.put([key(0)], slots(0)).success
