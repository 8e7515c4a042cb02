"""One engine's session: its scheduler connection decides, its worker connections copy.

Life: a scheduler says hello and registers; workers join by key and rank and map the partition's
segments; once all ranks have all segments in use, plans are made. When the scheduler's connection
ends, pins and half-written slots stay as they are until the last worker has left, because a worker
may still be copying; then everything is released at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from kvoffload_agent.memory.arena import Row
from kvoffload_agent.partitions.manager import PartitionManager
from kvoffload_agent.partitions.partition import Partition
from kvoffload_agent.server.connection import Connection
from kvoffload_agent.server.delegated import DelegatedWorker
from kvoffload_agent.server.engine import Engine, Entry, Policies
from kvoffload_agent.server.identity import Identity
from kvoffload_agent.server.jobs import JobTable
from kvoffload_agent.server.quota import Quota
from kvoffload_agent.server.requests import RequestTable
from kvoffload_agent.server.stats import SessionStats
from kvoffload_agent.server.translate import EngineShape, WireError
from kvoffload_agent.server.worker import Worker
from kvoffload_api.wire.copying import Start, Stop
from kvoffload_api.wire.messages import CapsChanged, Complete, Mapped, Refused, Unmapped

FromWorker: TypeAlias = Complete | Mapped | Unmapped | Start | Stop

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What exists once an engine registered."""

    fingerprint: str
    shape: EngineShape
    partition: Partition
    engine: Engine
    jobs: JobTable


class Session:
    """A member of its partition (``partitions.partition.Member``)."""

    def __init__(
        self,
        *,
        number: int,
        key: str,
        identity: Identity,
        scheduler: Connection,
        policies: Policies,
        manager: PartitionManager,
        stats: SessionStats,
        quota: Quota,
        released: Callable[[Session], None],
    ) -> None:
        self.number = number
        self.key = key
        self.identity = identity
        self.scheduler = scheduler
        self.stats = stats
        self.since = time.time()
        self.workers: dict[int, Worker] = {}
        self.registration: Registration | None = None
        self.requests = RequestTable(policies=policies, stats=stats, quota=quota)
        self.ending = ""
        """Why it ends; ``""`` while it lives."""
        self.ended_at: float | None = None
        """When it was told to leave, monotonic seconds; None while it lives."""
        self.draining = False
        """Set once nothing more may be planned, since the agent is to stop."""
        self.bucket = ""
        self.capacity: int | None = None
        self.disk_capacity: int | None = None
        self.min_reuse_count = 0
        self.entry: Entry | None = None
        self._policies = policies
        self._manager = manager
        self._released = released

    # --- as its partition sees it ----------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether every worker is connected and the engine lives."""
        registration = self.registration
        return (
            not self.ending
            and registration is not None
            and len(self.workers) == registration.shape.ranks
        )

    @property
    def ready(self) -> bool:
        """Whether plans may be made: every rank has mapped every segment in use."""
        registration = self.registration
        return not self.draining and registration is not None and registration.partition.ready(self)

    @property
    def loads_in_flight(self) -> int:
        """Loads that not every rank has acknowledged."""
        return self.registration.jobs.count("load") if self.registration else 0

    def has_mapped(self, row: Row) -> bool:
        """Whether every connected worker acknowledged a row."""
        return all(worker.has_mapped(row) for worker in self.workers.values())

    def holds(self, row: Row) -> bool:
        """Whether a connected worker has, or may have, a segment of this row mapped."""
        return any(worker.holds(row) for worker in self.workers.values())

    def send_unmap(self, row: Row) -> None:
        """Ask every connected worker for a row's segments, once."""
        if not self.ending:
            for worker in self.workers.values():
                worker.send_unmap(row)

    def send_map(self, row: Row) -> None:
        """Hand a row to every connected worker, unless they are to leave."""
        if self.ending:
            return
        for worker in self.workers.values():
            worker.send_map(row)

    # --- policy ----------------------------------------------------------------------------

    def follow_policy(self) -> None:
        """Take the pod's entry as it is now, before every decision; cheap when nothing changed."""
        changed = self.requests.follow(identity=self.identity, ready=self.ready)
        entry = self.requests.entry
        self.bucket = entry.bucket if entry else f"none/{self.identity.namespace}"
        self.capacity = entry.capacity if entry else 0
        self.disk_capacity = entry.disk_capacity if entry else None
        self.min_reuse_count = entry.effective.store.min_reuse_count if entry else 0
        if self.registration is None:
            return
        for handle, caps in changed:
            self.registration.engine.set_caps(handle, caps)
        if entry != self.entry:
            self.entry = entry
            self._tell_caps(entry)

    def _tell_caps(self, entry: Entry | None) -> None:
        caps = self._policies.resolve(entry, None).caps
        self.scheduler.send(
            CapsChanged(
                entry=entry.name if entry else "",
                max_load_tokens=caps.max_load_tokens,
                max_offload_tokens=caps.max_offload_tokens,
                policy=entry.source if entry else "",
            )
        )

    # --- workers ---------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        """Add a rank and hand it every segment of the partition."""
        assert self.registration is not None
        self.workers[worker.rank] = worker
        for row in self.registration.partition.usable_rows():
            worker.send_map(row)

    def from_worker(self, worker: Worker, message: FromWorker) -> None:
        """Handle what a worker's connection sent, in order.

        Raises:
            WireError: it is not for this kind of worker to say.
        """
        match message:
            case Start() if isinstance(worker, DelegatedWorker):
                worker.start(message)
            case Stop() if isinstance(worker, DelegatedWorker):
                worker.stop(message)
            case Complete() | Mapped() | Unmapped() if not isinstance(worker, DelegatedWorker):
                self.worker_message(worker, message)
            case _:
                kind = "the agent copies" if isinstance(worker, DelegatedWorker) else "it copies"
                raise WireError(f"{type(message).__name__} is not for a worker for which {kind}")

    def worker_message(self, worker: Worker, message: Complete | Mapped | Unmapped) -> None:
        """Take a report of what a worker, or the agent in its place, has done."""
        registration = self.registration
        assert registration is not None
        match message:
            case Complete():
                self.completed(worker.rank, done=message.done, failed=message.failed)
            case Mapped():
                worker.acknowledge(message.segments)
                self._manager.admit(registration.partition)
            case Unmapped():
                worker.unmapped(message.segments)
                self._manager.wake()

    def completed(self, rank: int, *, done: list[int], failed: list[int]) -> None:
        """Take one rank's report; jobs that it does not owe are dropped."""
        registration = self.registration
        assert registration is not None
        jobs = registration.jobs
        done = [job for job in done if jobs.acknowledge(job, rank=rank, ok=True)]
        failed = [job for job in failed if jobs.acknowledge(job, rank=rank, ok=False)]
        registration.engine.complete(done=done, failed=failed, now=time.monotonic())
        self._count((*done, *failed))

    def _count(self, jobs: Iterable[int]) -> None:
        """Count those of these jobs that no rank owes any more."""
        registration = self.registration
        assert registration is not None
        for job in jobs:
            record = registration.jobs.take_finished(job)
            if record is None:
                continue
            if record.failed:
                self.stats.copy_failed(record.direction)
            else:
                size = record.size * registration.shape.ranks
                self.stats.copied(record.direction, tokens=record.tokens, size=size)

    def worker_left(self, worker: Worker) -> None:
        """A rank's connection is closed: nobody copies for it any more, so what it owed ended.

        A store that it owed has failed. A load that it owed has too, for the engine; the chunk it
        read is as good as before and stays.
        """
        worker.forget()
        if self.workers.get(worker.rank) is worker:
            del self.workers[worker.rank]
        registration = self.registration
        if registration is not None:
            owed = registration.jobs.owed_by(worker.rank)
            loads = [job for job in owed if registration.jobs.direction(job) == "load"]
            stores = [job for job in owed if registration.jobs.direction(job) == "store"]
            for job in owed:
                registration.jobs.acknowledge(job, rank=worker.rank, ok=False)
            registration.engine.complete(done=loads, failed=stores, now=time.monotonic())
            self._count(owed)
        self._release_if_alone()

    # --- end -------------------------------------------------------------------------------

    def end(self, reason: str) -> None:
        """The engine is gone or must go: take no more from it, and let its workers leave."""
        if self.ending:
            return
        self.ending = reason
        self.ended_at = time.monotonic()
        _log.info(
            "session ends",
            session=self.number,
            namespace=self.identity.namespace,
            pod=self.identity.pod,
            reason=reason,
            jobs_in_flight=len(self.registration.jobs) if self.registration else 0,
        )
        self.scheduler.close()
        for worker in list(self.workers.values()):
            worker.forget()
            worker.close()
        self._release_if_alone()

    def refuse_and_end(self, code: str, message: str) -> None:
        """Tell every connection why the agent ends this session, then end it."""
        refusal = Refused(seq=-1, code=code, message=message)
        self.scheduler.send(refusal)
        for worker in self.workers.values():
            worker.connection.send(refusal)
        self.end(message)

    def _release_if_alone(self) -> None:
        if not self.ending or self.workers:
            return
        registration, self.registration = self.registration, None
        if registration is not None:
            registration.engine.close()
            self._manager.detach(self, registration.partition)
        self.requests.clear()
        self._released(self)
