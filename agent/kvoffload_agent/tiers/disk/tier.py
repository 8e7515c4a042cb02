"""A partition's view of the disk, behind the interface of secondary tiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvoffload_agent.tiers.disk.jobs import Account, Jobs, Memory, Owner
from kvoffload_agent.tiers.disk.reader import Reader
from kvoffload_agent.tiers.disk.store import DiskStore
from kvoffload_agent.tiers.disk.writer import Writer
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots


class DiskTier:
    """Chunks of one partition on the node's disk. ``account`` is asked each time."""

    medium: str | None = "storage"
    locality: str | None = "local"
    request_level = False

    def __init__(
        self,
        store: DiskStore,
        *,
        owner: Owner,
        memory: Memory,
        account: Callable[[], Account],
    ) -> None:
        self.folder = owner.folder
        self._store = store
        self._account = account
        self._jobs = Jobs()
        self._reader = Reader(store=store, owner=owner, memory=memory, jobs=self._jobs)
        self._writer = Writer(
            store=store, owner=owner, memory=memory, jobs=self._jobs, account=account
        )

    def lookup(self, request: int, key: Key) -> Verdict:
        """Say whether a chunk may be loaded now; no file is touched."""
        del request
        return Verdict.HIT if self._account().capacity and self._reader.has(key) else Verdict.MISS

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to fill slots."""
        del request
        self._reader.submit(job, keys, slots)

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin to write what is not here yet."""
        del request
        self._writer.submit(job, keys, slots)

    def poll(self) -> Sequence[Finished]:
        """Return the jobs that ended."""
        self._store.poll()
        return self._jobs.take_finished()

    def keep_within(self) -> None:
        """Follow a changed capacity or bucket."""
        account = self._account()
        if account.capacity is None:
            return
        self._writer.charge(account.bucket)
        if account.capacity:
            excess = self._store.index.used_by(account.bucket) - account.capacity
            self._store.trim(excess, bucket=account.bucket)
        else:
            self._store.remove(self._store.index.of(self.folder))

    def drain(self) -> None:
        """Forget every chunk of this partition: a reset says that none of them is valid."""
        self._writer.forget()
        self._jobs.end_all()
        self._store.forget(self.folder)

    def close(self) -> None:
        """Its partition is gone; what it stored stays, as that of the bucket it has."""
        self._store.index.leave(self.folder)

    def finish(self, request: int) -> None:
        """Nothing is kept for a request."""
