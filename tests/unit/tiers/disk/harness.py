"""A partition's slots in real memfds, and a disk tier over real files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.jobs import Account, Owner
from kvoffload_agent.tiers.disk.rows import SlotRows
from kvoffload_agent.tiers.disk.store import DiskStore
from kvoffload_agent.tiers.disk.tier import DiskTier
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots

# Real threads and files: far above what they need, so that only a hang reaches it.
PATIENCE_SECONDS = 20.0
MIB = 1 << 20


def key(number: int, group: int = 0) -> Key:
    return group, number.to_bytes(32, "big")


def slots(*numbers: int) -> Slots:
    return np.array(numbers, dtype=np.int64)


def _bytes(path: Path) -> int:
    return path.lstat().st_blocks * 512


class Slab:
    """One memfd for each rank."""

    def __init__(self, *, count: int, ranks: int, row_bytes: int) -> None:
        self.ranks, self.row_bytes, self.count = ranks, row_bytes, count
        self.fds = [os.memfd_create(f"rank-{rank}") for rank in range(ranks)]
        for number in self.fds:
            os.ftruncate(number, count * row_bytes)

    def rows(self, numbers: Slots) -> SlotRows:
        own = [os.dup(number) for number in self.fds]
        return SlotRows(
            fds=[tuple(own)] * len(numbers),
            offsets=[int(number) * self.row_bytes for number in numbers],
            row_bytes=self.row_bytes,
            owned=own,
        )

    def fill(self, slot: int, seed: int) -> None:
        for rank, number in enumerate(self.fds):
            data = np.random.default_rng([seed, rank]).bytes(self.row_bytes)
            os.pwrite(number, data, slot * self.row_bytes)

    def holds(self, slot: int, seed: int) -> bool:
        return all(
            os.pread(number, self.row_bytes, slot * self.row_bytes)
            == np.random.default_rng([seed, rank]).bytes(self.row_bytes)
            for rank, number in enumerate(self.fds)
        )

    def close(self) -> None:
        for number in self.fds:
            os.close(number)


@dataclass
class Disk:
    """One life of an agent's disk with one partition; a second one on ``root`` is a restart."""

    root: Path
    slab: Slab
    files: Files | None = None
    capacity: int | None = 1 << 40
    budget: int | None = None
    namespace: str = "team-a"
    fingerprint: str = "f" * 64
    now: float = 0.0
    jobs: int = 0
    started_ns: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        self.store = DiskStore(
            self.files or Files(self.root, reserve=0),
            budget=lambda: self.budget,
            clock=lambda: self.now,
            started_ns=self.started_ns,
        )
        self.tier = self.partition(self.namespace, self.fingerprint)

    def partition(self, namespace: str, fingerprint: str, bucket: str | None = None) -> DiskTier:
        return DiskTier(
            self.store,
            owner=Owner(
                namespace=namespace,
                fingerprint=fingerprint,
                ranks=self.slab.ranks,
                row_bytes=self.slab.row_bytes,
            ),
            memory=self.slab,
            account=lambda: Account(bucket or f"{namespace}/policy", self.capacity),
        )

    async def adopted(self) -> Disk:
        """Open, and adopt all that is there; the housekeeping that follows is left to the test."""
        await self.store.open()
        await self.store.adopt()
        return self

    def put(self, keys: Sequence[Key], at: Slots, tier: DiskTier | None = None) -> Finished:
        tier = tier or self.tier
        self.jobs += 1
        tier.submit_store(self.jobs, 0, keys, at)
        return self.end_of(tier, self.jobs)

    def get(self, keys: Sequence[Key], at: Slots, tier: DiskTier | None = None) -> Finished:
        tier = tier or self.tier
        self.jobs += 1
        tier.submit_load(self.jobs, 0, keys, at)
        return self.end_of(tier, self.jobs)

    def end_of(self, tier: DiskTier, job: int) -> Finished:
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            for finished in tier.poll():
                if finished.job == job:
                    return finished
            time.sleep(0.001)
        raise AssertionError(f"job {job} never ended")

    def settle(self) -> None:
        """Wait until nothing is being written or removed."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._settled():
            assert time.monotonic() < until, "something never ended"
            self.store.poll()
            time.sleep(0.001)

    def _settled(self) -> bool:
        try:
            held = sum(_bytes(path) for path in self.root.iterdir() if any(path.glob("*")))
        except FileNotFoundError:  # a directory that was just removed
            return False
        return self.store.index.used == sum(pack.bytes for pack in self.packs) + held

    def has(self, wanted: Key, tier: DiskTier | None = None) -> bool:
        return (tier or self.tier).lookup(0, wanted) is Verdict.HIT

    @property
    def packs(self) -> list:
        return self.store.index.all()

    @property
    def paths(self) -> list[Path]:
        return sorted(self.root.glob("*/*"))

    @property
    def folders(self) -> int:
        return sum(_bytes(path) for path in self.root.iterdir() if path.is_dir())

    @property
    def on_disk(self) -> int:
        return sum(_bytes(path) for path in self.paths) + self.folders

    def close(self) -> None:
        self.store.close()
        self.store.files.close()
