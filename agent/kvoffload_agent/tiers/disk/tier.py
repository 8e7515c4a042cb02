"""A partition's view of the disk, behind the interface of secondary tiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.index import Pack
from kvoffload_agent.tiers.disk.jobs import Account, Job, Memory
from kvoffload_agent.tiers.disk.layout import DamagedError, Header
from kvoffload_agent.tiers.disk.rows import VanishedError, Wanted, Written
from kvoffload_agent.tiers.disk.store import DiskStore
from kvoffload_agent.tiers.disk.transfers import reason_of
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots

# Slots that wait to be written down cannot be evicted: a slow disk must not hold all of them.
QUEUE_BYTES: Final = 512 << 20


class DiskTier:
    """Chunks of one partition on the node's disk. ``account`` is asked each time."""

    medium: str | None = "storage"
    locality: str | None = "local"
    request_level = False

    def __init__(
        self,
        store: DiskStore,
        *,
        namespace: str,
        fingerprint: str,
        ranks: int,
        row_bytes: int,
        memory: Memory,
        account: Callable[[], Account],
    ) -> None:
        self.folder = layout.folder_name(namespace, fingerprint)
        self._store = store
        self._namespace, self._fingerprint = namespace, fingerprint
        self._ranks, self._row_bytes = ranks, row_bytes
        self._memory = memory
        self._account = account
        self._charged: str | None = None
        self._jobs: set[Job] = set()
        self._finished: list[Finished] = []
        self._writing: set[Key] = set()
        self._epoch = 0
        self._queued = 0

    # --- loads -------------------------------------------------------------------------------

    def lookup(self, request: int, key: Key) -> Verdict:
        """Say whether a chunk may be loaded now; no file is touched."""
        del request
        store, now = self._store, self._store.clock()
        if not self._account().capacity or not store.transfers.loads.allows(now):
            return Verdict.MISS
        place = store.index.find(self.folder, key)
        if place is None or place.pack.chunk_bytes != self._ranks * self._row_bytes:
            return Verdict.MISS
        return Verdict.HIT if store.index.servable(self.folder, key, now=now) else Verdict.MISS

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to fill slots, one read for each pack."""
        del request
        work = Job(number=job, keys=keys, load=True, rows=self._memory.rows(slots))
        self._jobs.add(work)
        packs: dict[Pack, list[Wanted]] = {}
        for row, key in enumerate(keys):
            place = self._store.index.find(self.folder, key)
            if place is None:
                work.failed = True
                self._store.counters.not_loaded["evicted"] += 1
                continue
            checksum = place.pack.sums[place.at]
            wanted = Wanted(at=place.at, row=row, key=key, checksum=checksum)
            packs.setdefault(place.pack, []).append(wanted)
        for pack, chunks in packs.items():
            self._read(work, pack, chunks)
        self._settle(work)

    def _read(self, job: Job, pack: Pack, wanted: list[Wanted]) -> None:
        store = self._store
        pack.readers += 1
        store.index.touch(pack)
        job.pending += 1
        job.working += 1
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
            self._returned(job)

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
                    store.index.refuse(self.folder, key, now=store.clock())
            self._ended(job)

        store.transfers.begin(read, load=True, cancel=job.cancel, ended=ended, returned=returned)

    # --- stores ------------------------------------------------------------------------------

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to write what is not here yet, as few packs; what has no room is left out."""
        del request
        store = self._store
        fresh = [at for at, key in enumerate(keys) if self._is_new(key)]
        reason = self._refusal(len(fresh)) if fresh else ""
        if not fresh or reason:
            if reason:
                store.counters.not_stored[reason] += len(fresh)
            self._finished.append(Finished(job=job, success=not reason))
            return
        account = self._account()
        self._charge(account.bucket)
        rows = self._memory.rows(slots[fresh])
        work = Job(number=job, keys=[keys[at] for at in fresh], load=False, rows=rows)
        self._jobs.add(work)
        first = 0
        for count in layout.pack_lengths(
            chunks=len(fresh), chunk_bytes=self._ranks * self._row_bytes
        ):
            # The first chunks of a request are those that most others share.
            if not self._write(work, account, first, count):
                work.failed = True
                store.counters.not_stored["no room"] += len(fresh) - first
                break
            first += count
        self._settle(work)

    def _is_new(self, key: Key) -> bool:
        place = self._store.index.find(self.folder, key)
        if place is not None:
            self._store.index.touch(place.pack)
        return place is None and key not in self._writing

    def _refusal(self, chunks: int) -> str:
        """Return why nothing is stored now, ``""`` if something is."""
        store, now = self._store, self._store.clock()
        if not self._account().capacity:
            return "no capacity"
        if not store.ready:
            return "not ready"
        if not store.transfers.stores.allows(now):
            return "disk fails"
        if self._queued + chunks * self._ranks * self._row_bytes > QUEUE_BYTES and self._queued:
            return "disk is slow"
        return "disk is slow" if store.pressure.drops(now) else ""

    def _write(self, job: Job, account: Account, first: int, count: int) -> bool:
        store = self._store
        keys = list(job.keys[first : first + count])
        header = Header(
            name=store.pack_name(),
            namespace=self._namespace,
            fingerprint=self._fingerprint,
            bucket=account.bucket,
            ranks=self._ranks,
            row_bytes=self._row_bytes,
            keys=keys,
            sums=bytes(4 * count),
        )
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
        job.working += 1
        epoch, begun = self._epoch, store.clock()

        gone: list[Pack] = []

        def write() -> Written:
            gone.extend(store.unlink(victims))
            return store.files.write(
                header, folder=self.folder, rows=job.rows, first=first, cancel=job.cancel
            )

        def returned(error: BaseException | None, value: Written | None) -> None:
            store.gone(gone)
            store.index.release(account.bucket, reserved)
            self._queued -= size
            self._writing.difference_update(keys)
            if value is not None:
                seconds = store.clock() - begun
                store.pressure.completed(size=size, seconds=seconds, now=store.clock())
                self._add(header, value, stale=epoch != self._epoch)
            elif error is not None:
                store.pressure.failed(now=store.clock())
            self._returned(job)

        def ended(error: BaseException | None, value: Any) -> None:
            del value
            if error is not None:
                job.failed = True
                store.counters.not_stored[reason_of(error)] += count
            self._ended(job)

        store.transfers.begin(write, load=False, cancel=job.cancel, ended=ended, returned=returned)
        return True

    def _add(self, header: Header, written: Written, *, stale: bool) -> None:
        pack = Pack(
            name=header.name,
            folder=self.folder,
            bucket=header.bucket,
            bytes=written.bytes,
            data_at=written.data_at,
            chunk_bytes=header.chunk_bytes,
            keys=header.keys,
            sums=written.sums,
        )
        self._store.index.add(pack)
        if stale:  # forgotten while it was written
            self._store.remove([pack])
        else:
            self._store.counters.stored += len(pack.keys)

    def _charge(self, bucket: str) -> None:
        if bucket != self._charged:
            self._store.index.charge(self.folder, bucket)
            self._charged = bucket

    # --- jobs --------------------------------------------------------------------------------

    def poll(self) -> Sequence[Finished]:
        """Return the jobs that ended."""
        self._store.poll()
        finished, self._finished = self._finished, []
        return finished

    def keep_within(self) -> None:
        """Follow a changed capacity or bucket."""
        account = self._account()
        self._charge(account.bucket)
        if account.capacity:
            excess = self._store.index.used_by(account.bucket) - account.capacity
            self._store.trim(excess, bucket=account.bucket)
        else:
            self._store.remove(self._store.index.of(self.folder))

    def drain(self) -> None:
        """Forget every chunk of this partition: a reset says that none of them is valid."""
        self._epoch += 1
        for job in list(self._jobs):
            job.cancel.cancel()
            job.failed = True
            job.arrived.clear()
            self._report(job)
        self._store.forget(self.folder)

    def finish(self, request: int) -> None:
        """Nothing is kept for a request."""

    def _ended(self, job: Job) -> None:
        job.pending -= 1
        self._settle(job)

    def _returned(self, job: Job) -> None:
        job.working -= 1
        if not job.working:
            job.rows.close()

    def _settle(self, job: Job) -> None:
        if not job.pending:
            self._report(job)
        if not job.working:
            job.rows.close()

    def _report(self, job: Job) -> None:
        self._jobs.discard(job)
        if not job.reported:
            job.reported = True
            arrived = frozenset(job.arrived) if job.load else None
            self._finished.append(Finished(job=job.number, success=not job.failed, arrived=arrived))
