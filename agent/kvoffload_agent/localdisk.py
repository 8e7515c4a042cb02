"""The node's disk as partitions use it: their tiers, figures, and the tasks that keep house."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kvoffload_agent.partitions.partition import Partition, PartitionKey
from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.jobs import Account, Owner
from kvoffload_agent.tiers.disk.rows import SlotRows
from kvoffload_agent.tiers.disk.store import LOOK_SECONDS, DiskStore
from kvoffload_agent.tiers.disk.tier import DiskTier
from kvoffload_agent.tiers.slots import Slots


class PartitionMemory:
    """A partition's slots as open files: ``tiers.disk.jobs.Memory``."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    def rows(self, slots: Slots) -> SlotRows:
        """Return the rows of slots, with descriptors of their own.

        Raises:
            OSError: there are no descriptors left.
        """
        known = {row.segments[0].id: row for row in self._partition.every_row()}
        segments, offsets = self._partition.space.locate(slots, slots * 0)
        owned: list[int] = []
        fds: dict[int, tuple[int, ...]] = {}
        try:
            for number in set(segments.tolist()):
                first = len(owned)
                owned.extend(os.dup(segment.fd) for segment in known[number].segments)
                fds[number] = tuple(owned[first:])
        except OSError:
            for descriptor in owned:
                os.close(descriptor)
            raise
        return SlotRows(
            fds=[fds[number] for number in segments.tolist()],
            offsets=[int(offset) for offset in offsets],
            row_bytes=self._partition.geometry.row_bytes,
            owned=owned,
        )


class LocalDisk:
    """``root``: a directory of this agent alone.

    ``budget`` returns the bytes that policy gives the node now, None: no bound but the file
    system's.
    """

    def __init__(self, root: Path, *, budget: Callable[[], int | None]) -> None:
        self.root = root
        self._tiers: dict[PartitionKey, DiskTier] = {}
        self.store = DiskStore(
            Files(root), budget=budget, clock=time.monotonic, started_ns=time.time_ns()
        )

    def tier(self, partition: Partition) -> DiskTier:
        """Return the tier of a new partition."""
        tier = DiskTier(
            self.store,
            owner=Owner(
                namespace=partition.key.namespace,
                fingerprint=partition.key.fingerprint,
                ranks=partition.geometry.ranks,
                row_bytes=partition.geometry.row_bytes,
            ),
            memory=PartitionMemory(partition),
            account=lambda: Account(partition.disk_bucket, partition.disk_capacity),
        )
        self._tiers[partition.key] = tier
        return tier

    async def run(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        """Open, adopt and keep within limits, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.store.run())
            while True:
                self.keep_within(partitions())
                await asyncio.sleep(LOOK_SECONDS)

    def keep_within(self, partitions: Iterable[Partition]) -> None:
        """Follow the policies of the partitions that there are."""
        present = {partition.key for partition in partitions}
        for key, tier in list(self._tiers.items()):
            if key in present:
                tier.keep_within()
            else:
                self._tiers.pop(key).close()

    def close(self) -> None:
        """End every transfer; files stay for the next agent."""
        self.store.close()

    def as_json(self) -> dict[str, Any]:
        """Return its figures for ``/debug/state``: bytes, chunks, and counters by reason."""
        store, counters = self.store, self.store.counters
        return {
            "path": str(self.root),
            "state": store.state,
            "capacity": store.capacity,
            "used": store.used,
            "available": store.available,
            "limited_by": store.limited_by,
            "chunks": store.index.chunks,
            "files": store.index.packs,
            "chunks_stored": counters.stored,
            "chunks_loaded": counters.loaded,
            "chunks_adopted": counters.adopted,
            "chunks_evicted": counters.evicted,
            "files_rejected": dict(counters.rejected),
            "chunks_not_stored": dict(counters.not_stored),
            "chunks_not_loaded": dict(counters.not_loaded),
        }
