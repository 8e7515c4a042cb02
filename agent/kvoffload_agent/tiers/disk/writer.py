"""Stores of one partition: from slots into packs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.index import Pack
from kvoffload_agent.tiers.disk.jobs import Account, Job, Jobs, Memory, Owner
from kvoffload_agent.tiers.disk.layout import Header
from kvoffload_agent.tiers.disk.rows import Written
from kvoffload_agent.tiers.disk.store import DiskStore
from kvoffload_agent.tiers.disk.transfers import reason_of
from kvoffload_agent.tiers.secondary import Key
from kvoffload_agent.tiers.slots import Slots

# Slots that wait to be written down cannot be evicted: a slow disk must not hold all of them.
QUEUE_BYTES: Final = 512 << 20
# A small file takes as long as its name, its blocks and its rename do: seconds for each MiB of it
# would call every disk slow.
FILE_COST_BYTES: Final = 1 << 20


class Writer:
    """Begins stores; results come by ``jobs``. ``account`` is asked each time."""

    def __init__(
        self,
        *,
        store: DiskStore,
        owner: Owner,
        memory: Memory,
        jobs: Jobs,
        account: Callable[[], Account],
    ) -> None:
        self._store = store
        self._owner = owner
        self._memory = memory
        self._jobs = jobs
        self._account = account
        self._writing: set[Key] = set()
        self._epoch = 0
        self._queued = 0

    def submit(self, number: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to write what is not here yet, as few packs; what has no room is left out."""
        store = self._store
        fresh = [at for at, key in enumerate(keys) if self._is_new(key)]
        reason = self._refusal(len(fresh)) if fresh else ""
        if not fresh or reason:
            self._refuse(number, len(fresh), reason)
            return
        account = self._account()
        self.charge(account.bucket)
        try:
            rows = self._memory.rows(slots[fresh])
        except OSError as error:
            self._refuse(number, len(fresh), reason_of(error))
            return
        job = Job(number=number, keys=[keys[at] for at in fresh], load=False, rows=rows)
        self._jobs.begin(job)
        first = 0
        for count in layout.pack_lengths(chunks=len(fresh), chunk_bytes=self._owner.chunk_bytes):
            # The first chunks of a request are those that most others share.
            if not self._write(job, account, first, count):
                job.failed = True
                store.counters.not_stored["no room"] += len(fresh) - first
                break
            first += count
        self._jobs.settle(job)

    def forget(self) -> None:
        """What is being written now is not to be kept."""
        self._epoch += 1

    def charge(self, bucket: str) -> None:
        """Count what is here against a bucket."""
        self._store.index.charge(self._owner.folder, bucket)

    def _is_new(self, key: Key) -> bool:
        place = self._store.index.find(self._owner.folder, key)
        if place is not None:
            self._store.index.touch(place.pack)
        return place is None and key not in self._writing

    def _refuse(self, number: int, chunks: int, reason: str) -> None:
        if reason:
            self._store.counters.not_stored[reason] += chunks
        self._jobs.refused(number, success=not reason)

    def _refusal(self, chunks: int) -> str:
        """Return why nothing is stored now, ``""`` if something is."""
        store, now = self._store, self._store.clock()
        if not self._account().capacity:
            return "no capacity"
        if not store.ready:
            return "not ready"
        if not store.transfers.stores.allows(now):
            return "disk fails"
        if self._queued and self._queued + chunks * self._owner.chunk_bytes > QUEUE_BYTES:
            return "disk is slow"
        return "disk is slow" if store.pressure.drops(now) else ""

    def _write(self, job: Job, account: Account, first: int, count: int) -> bool:
        store = self._store
        keys = list(job.keys[first : first + count])
        header = self._header(account.bucket, keys)
        size = layout.file_bytes(
            header_bytes=len(layout.encode(header)), chunks=count, chunk_bytes=header.chunk_bytes
        )
        # The file system may take some blocks of its own for a file: one for its extents is usual.
        reserved = size + layout.ALIGN
        victims = store.make_room(account.bucket, account.capacity or 0, reserved)
        if victims is None:
            return False
        self._writing.update(keys)
        self._queued += size
        job.pending += 1
        epoch, begun = self._epoch, store.clock()
        gone: list[Pack] = []

        def write() -> Written:
            gone.extend(store.removals.unlink(victims))
            return store.files.write(
                header, folder=self._owner.folder, rows=job.rows, first=first, cancel=job.cancel
            )

        def returned(error: BaseException | None, value: Written | None) -> None:
            now = store.clock()
            store.removals.settle(victims, gone, now=now)
            store.index.release(account.bucket, reserved)
            self._queued -= size
            self._writing.difference_update(keys)
            if value is not None:
                counted = max(size, FILE_COST_BYTES)
                store.pressure.completed(size=counted, seconds=now - begun, now=now)
                self._add(header, value, stale=epoch != self._epoch)
            elif error is not None:
                store.pressure.failed(now=now)

        def ended(error: BaseException | None, value: Any) -> None:
            del value
            if error is None:
                job.moved += count * self._owner.chunk_bytes
            else:
                job.failed = True
                store.counters.not_stored[reason_of(error)] += count
            self._jobs.ended(job)

        store.transfers.begin(write, load=False, cancel=job.cancel, ended=ended, returned=returned)
        return True

    def _header(self, bucket: str, keys: list[Key]) -> Header:
        owner = self._owner
        return Header(
            name=self._store.pack_name(),
            namespace=owner.namespace,
            fingerprint=owner.fingerprint,
            bucket=bucket,
            ranks=owner.ranks,
            row_bytes=owner.row_bytes,
            keys=keys,
            sums=bytes(4 * len(keys)),
        )

    def _add(self, header: Header, written: Written, *, stale: bool) -> None:
        pack = Pack(
            name=header.name,
            folder=self._owner.folder,
            bucket=header.bucket,
            bytes=written.bytes,
            data_at=written.data_at,
            chunk_bytes=header.chunk_bytes,
            keys=header.keys,
            sums=written.sums,
        )
        self._store.index.measure(pack.folder, written.folder_bytes)
        self._store.index.add(pack)
        if stale:  # forgotten while it was written
            self._store.remove([pack])
        else:
            self._store.counters.stored += len(pack.keys)
