"""Loads of one partition: from packs into slots."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.index import Pack
from kvoffload_agent.tiers.disk.jobs import Job, Jobs, Memory, Owner
from kvoffload_agent.tiers.disk.layout import DamagedError
from kvoffload_agent.tiers.disk.rows import VanishedError, Wanted
from kvoffload_agent.tiers.disk.store import DiskStore
from kvoffload_agent.tiers.disk.transfers import reason_of
from kvoffload_agent.tiers.secondary import Key
from kvoffload_agent.tiers.slots import Slots


class Reader:
    """Begins loads; results come by ``jobs``."""

    def __init__(self, *, store: DiskStore, owner: Owner, memory: Memory, jobs: Jobs) -> None:
        self._store = store
        self._memory = memory
        self._jobs = jobs
        self._folder = owner.folder
        self._chunk_bytes = owner.chunk_bytes

    def has(self, key: Key) -> bool:
        """Whether a chunk may be loaded now; no file is touched."""
        store, now = self._store, self._store.clock()
        if not store.transfers.loads.allows(now):
            return False
        place = store.index.find(self._folder, key)
        if place is None or place.pack.chunk_bytes != self._chunk_bytes:
            return False
        return store.index.servable(self._folder, key, now=now)

    def submit(self, number: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to fill slots, one read for each pack."""
        try:
            rows = self._memory.rows(slots)
        except OSError as error:
            self._store.counters.not_loaded[reason_of(error)] += len(keys)
            self._jobs.refused(number, success=False)
            return
        job = Job(number=number, keys=keys, load=True, rows=rows)
        self._jobs.begin(job)
        packs: dict[Pack, list[Wanted]] = {}
        for row, key in enumerate(keys):
            place = self._store.index.find(self._folder, key)
            if place is None:
                job.failed = True
                self._store.counters.not_loaded["evicted"] += 1
                continue
            checksum = place.pack.sums[place.at]
            wanted = Wanted(at=place.at, row=row, key=key, checksum=checksum)
            packs.setdefault(place.pack, []).append(wanted)
        for pack, chunks in packs.items():
            self._read(job, pack, chunks)
        self._jobs.settle(job)

    def _read(self, job: Job, pack: Pack, wanted: list[Wanted]) -> None:
        store = self._store
        pack.readers += 1
        store.index.touch(pack)
        job.pending += 1
        size = layout.file_bytes(
            header_bytes=pack.data_at, chunks=len(pack.keys), chunk_bytes=pack.chunk_bytes
        )
        read = partial(
            store.files.read,
            folder=pack.folder,
            name=pack.name,
            size=size,
            data_at=pack.data_at,
            wanted=wanted,
            rows=job.rows,
            cancel=job.cancel,
        )

        def returned(error: BaseException | None, value: Any) -> None:
            del value
            pack.readers -= 1
            if isinstance(error, DamagedError | VanishedError):
                store.damaged(pack, error)

        def ended(error: BaseException | None, value: Any) -> None:
            del value
            keys = [item.key for item in wanted]
            if error is None:
                job.arrived.update(keys)
                store.counters.loaded += len(keys)
            else:
                job.failed = True
                store.counters.not_loaded[reason_of(error)] += len(keys)
                for key in keys:
                    store.index.refuse(self._folder, key, now=store.clock())
            self._jobs.ended(job)

        store.transfers.begin(read, load=True, cancel=job.cancel, ended=ended, returned=returned)
