"""Disk tier on real file systems that are full, and with as many chunks as a node has."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.tiers.disk.harness import MIB, Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.io import Files

CHUNKS = 100_000
ROW_BYTES = 64 << 10


def _tmpfs(at: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", at], check=True)


def _ext4(at: Path) -> None:
    image = at.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(8 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True)


@pytest.fixture(params=[_tmpfs, _ext4], ids=["tmpfs", "ext4"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    at = tmp_path / "mount"
    at.mkdir()
    mount: Callable[[Path], None] = request.param
    mount(at)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


def _free(at: Path) -> int:
    found = os.statvfs(at)
    return found.f_bavail * found.f_frsize


class LateFiles(Files):
    """Fake: believes that there is room, as if others filled the disk after it looked."""

    def available(self) -> int:
        return 1 << 40


@pytest.mark.cgroup
async def test_a_disk_that_others_fill_at_any_step_of_a_store_keeps_nothing_half(
    small: Path,
) -> None:
    slab = Slab(count=16, ranks=1, row_bytes=ROW_BYTES)
    for slot in range(16):
        slab.fill(slot, slot)
    disk = await Disk(root=small / "disk", slab=slab, files=LateFiles(small / "disk")).adopted()
    ballast = small / "ballast"
    # From no free block at all up to enough for everything: every step of a store is hit.
    outcomes = set()
    for free in range(0, 9 * ROW_BYTES, ROW_BYTES // 4):
        with contextlib.suppress(OSError):  # the file system needs blocks for its own lists
            ballast.write_bytes(bytes(max(0, _free(small) - free)))
        disk.now += 3600
        stored = disk.put([key(n) for n in range(8)], slots(*range(8))).success
        outcomes.add(stored)
        assert len(disk.paths) == stored
        assert disk.has(key(0)) == stored
        if stored:
            assert disk.get([key(3)], slots(12)).success
            assert slab.holds(12, 3)
            disk.tier.drain()
            disk.tier.poll()
            disk.settle()
        ballast.unlink()
    assert outcomes == {False, True}
    assert disk.store.counters.not_stored["ENOSPC"] > 0
    disk.close()
    slab.close()


@pytest.mark.cgroup
async def test_a_cache_larger_than_its_file_system_stays_within_it_and_works(small: Path) -> None:
    slab = Slab(count=16, ranks=1, row_bytes=ROW_BYTES)
    disk = await Disk(root=small / "disk", slab=slab).adopted()
    for number in range(200):
        slab.fill(0, number)
        disk.now += 1
        disk.put([key(number)], slots(0))
        disk.store.tick()
        disk.settle()
    assert disk.store.counters.evicted > 0
    served = [number for number in range(200) if disk.has(key(number))]
    assert served
    assert served[-1] > 150
    for number in served:
        assert disk.get([key(number)], slots(9)).success
        assert slab.holds(9, number)
    disk.close()
    slab.close()


async def test_100_000_chunks_are_adopted_while_others_are_served(tmp_path: Path) -> None:
    slab = Slab(count=64, ranks=1, row_bytes=128)
    slab.fill(3, 3)
    disk = await Disk(root=tmp_path / "disk", slab=slab).adopted()
    # As prompts of 1,000 tokens leave them: 64 chunks of one request, one file.
    for first in range(0, CHUNKS, 64):
        count = min(64, CHUNKS - first)
        numbers = range(first, first + count)
        assert disk.put([key(number) for number in numbers], slots(*range(count))).success
    files = len(disk.paths)
    disk.close()
    again = Disk(root=tmp_path / "disk", slab=slab)
    begun = time.monotonic()
    await again.store.open()
    opened = time.monotonic() - begun
    adoption = asyncio.create_task(again.store.adopt())
    gap = 0.0
    while not adoption.done():
        before = time.monotonic()
        await asyncio.sleep(0)
        gap = max(gap, time.monotonic() - before)
        if again.store.state == "adopting" and again.tier.lookup(0, key(CHUNKS)):
            raise AssertionError("a chunk that was never stored")
    print(
        f"{CHUNKS} chunks in {files} files: open {opened:.2f} s, adopted after"
        f" {time.monotonic() - begun:.2f} s, longest gap of the loop {gap * 1e3:.1f} ms"
    )
    assert again.store.counters.adopted == CHUNKS
    assert not again.store.counters.rejected
    assert again.get([key(CHUNKS - CHUNKS % 64 + 3)], slots(40)).success
    assert slab.holds(40, 3)
    again.close()
    slab.close()
