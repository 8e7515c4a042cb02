"""A disk that fails, fills or hangs: transfers end in time, and it is left alone for a while."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.tiers.disk.harness import Disk, Slab, key, slots

from kvoffload_agent.tiers.disk.breaker import FAILURES, FIRST_PAUSE_SECONDS, Breaker
from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.transfers import TRANSFER_SECONDS

Life = Callable[..., Disk]


class FaultyFiles(Files):
    """Fake: real files whose reads and writes fail or hang on demand, as a broken disk's do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, reserve=0)
        self.error = 0
        self.good_writes = 0
        self.gate = threading.Event()
        self.gate.set()

    def put(self, number: int, data: memoryview, at: int) -> None:
        self._fault(at)
        super().put(number, data, at)

    def get(self, number: int, data: memoryview, at: int) -> None:
        self._fault(at)
        super().get(number, data, at)

    def _fault(self, at: int) -> None:
        self.gate.wait(60)
        if self.error and self.good_writes <= 0:
            raise OSError(self.error, os.strerror(self.error))
        self.good_writes -= 1


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyFiles]:
    files = FaultyFiles(tmp_path / "disk")
    yield files
    files.gate.set()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("good", [0, 1])
async def test_a_write_that_fails_at_any_step_leaves_nothing(
    life: Life, faulty: FaultyFiles, error: int, good: int
) -> None:
    disk = await life(files=faulty).adopted()
    faulty.error, faulty.good_writes = error, good
    assert not disk.put([key(0)], slots(0)).success
    assert disk.store.counters.not_stored == {errno.errorcode[error]: 1}
    assert disk.paths == []
    assert disk.store.index.used == 0
    assert not disk.has(key(0))


async def test_a_full_disk_takes_no_stores_for_a_while_and_still_serves(
    life: Life, faulty: FaultyFiles, slab: Slab
) -> None:
    disk = await life(files=faulty).adopted()
    slab.fill(0, 0)
    disk.put([key(0)], slots(0))
    faulty.error = errno.ENOSPC
    assert not disk.put([key(1)], slots(1)).success
    faulty.error = 0
    assert not disk.put([key(2)], slots(2)).success
    assert disk.store.counters.not_stored["disk fails"] == 1
    assert disk.get([key(0)], slots(20)).success
    disk.now += FIRST_PAUSE_SECONDS
    assert disk.put([key(2)], slots(2)).success


async def test_a_read_error_is_not_tried_again_at_once(life: Life, faulty: FaultyFiles) -> None:
    disk = await life(files=faulty).adopted()
    disk.put([key(0)], slots(0))
    faulty.error = errno.EIO
    assert not disk.get([key(0)], slots(20)).success
    assert not disk.has(key(0))
    faulty.error = 0
    disk.now += 3600
    assert disk.has(key(0))


async def test_three_read_errors_turn_loads_off_and_one_good_read_turns_them_on(
    life: Life, faulty: FaultyFiles
) -> None:
    disk = await life(files=faulty).adopted()
    for number in range(FAILURES + 1):
        disk.put([key(number)], slots(number))
    faulty.error = errno.EIO
    for number in range(FAILURES):
        assert disk.has(key(number))
        disk.get([key(number)], slots(20))
    assert not disk.has(key(FAILURES))
    faulty.error = 0
    disk.now += FIRST_PAUSE_SECONDS
    assert disk.has(key(FAILURES))
    assert disk.get([key(FAILURES)], slots(20)).success
    assert not disk.store.transfers.loads.reason


async def test_a_load_from_a_disk_that_hangs_ends_and_never_touches_the_slot_again(
    life: Life, faulty: FaultyFiles, slab: Slab
) -> None:
    disk = await life(files=faulty).adopted()
    slab.fill(0, 0)
    disk.put([key(0)], slots(0))
    faulty.gate.clear()
    disk.tier.submit_load(77, 0, [key(0)], slots(20))
    assert disk.tier.poll() == []
    disk.now += TRANSFER_SECONDS
    [finished] = disk.tier.poll()
    assert not finished.success
    assert disk.store.counters.not_loaded == {"deadline": 1}
    slab.fill(20, 99)
    faulty.gate.set()
    assert disk.get([key(0)], slots(21)).success  # the hanging read has returned by now, or does
    disk.settle()
    assert slab.holds(20, 99)


async def test_a_store_to_a_disk_that_hangs_gives_its_slots_back(
    life: Life, faulty: FaultyFiles
) -> None:
    disk = await life(files=faulty).adopted()
    faulty.gate.clear()
    disk.tier.submit_store(77, 0, [key(0)], slots(0))
    disk.now += TRANSFER_SECONDS
    [finished] = disk.tier.poll()
    assert not finished.success
    assert disk.store.index.used > 0
    faulty.gate.set()
    disk.settle()
    assert disk.paths == []


async def test_a_reset_during_a_load_ends_it_before_its_slot_is_used_again(
    life: Life, faulty: FaultyFiles, slab: Slab
) -> None:
    disk = await life(files=faulty).adopted()
    slab.fill(0, 0)
    disk.put([key(0)], slots(0))
    faulty.gate.clear()
    disk.tier.submit_load(77, 0, [key(0)], slots(20))
    disk.tier.drain()
    [finished] = disk.tier.poll()
    assert not finished.success
    slab.fill(20, 99)
    faulty.gate.set()
    disk.settle()
    assert slab.holds(20, 99)
    assert disk.paths == []


async def test_what_is_written_while_a_reset_comes_is_not_kept(
    life: Life, faulty: FaultyFiles
) -> None:
    disk = await life(files=faulty).adopted()
    faulty.gate.clear()
    disk.tier.submit_store(77, 0, [key(0)], slots(0))
    disk.tier.drain()
    faulty.gate.set()
    disk.settle()
    assert not disk.has(key(0))
    assert disk.paths == []


def test_the_pause_of_a_breaker_doubles_up_to_a_minute() -> None:
    breaker, now, pauses = Breaker(), 0.0, []
    breaker.failed("EIO", now=now, at_once=True)
    for _ in range(6):
        begun = now
        while not breaker.allows(now):
            now += 1
        pauses.append(now - begun)
        breaker.begin()
        assert not breaker.allows(now)
        breaker.failed("EIO", now=now)
    assert pauses == [5, 10, 20, 40, 60, 60]
