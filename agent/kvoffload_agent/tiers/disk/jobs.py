"""What a partition's disk tier is given, and its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.rows import Cancel, SlotRows
from kvoffload_agent.tiers.secondary import Finished, Key
from kvoffload_agent.tiers.slots import Slots


class Account(NamedTuple):
    """Whose capacity is used. ``capacity`` 0: policy gives no disk, and what is there is removed.

    None: nobody knows yet; nothing is stored or loaded, and nothing removed.
    """

    bucket: str
    capacity: int | None


class Memory(Protocol):
    """Where a partition's slots are."""

    def rows(self, slots: Slots) -> SlotRows:
        """Return the rows of slots, with descriptors of their own.

        Raises:
            OSError: there are no descriptors left.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The partition: who shares its chunks, and how large one is. ``row_bytes`` of one rank."""

    namespace: str
    fingerprint: str
    ranks: int
    row_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk's rows on all ranks."""
        return self.ranks * self.row_bytes

    @property
    def folder(self) -> str:
        """Name of its directory."""
        return layout.folder_name(self.namespace, self.fingerprint)


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A store or load of several packs. ``pending``: packs that nobody reported yet."""

    number: int
    keys: Sequence[Key]
    load: bool
    rows: SlotRows
    cancel: Cancel = field(default_factory=Cancel)
    pending: int = 0
    arrived: set[Key] = field(default_factory=set)
    moved: int = 0
    """Bytes that a store has written."""
    failed: bool = False
    reported: bool = False


class Jobs:
    """Jobs under way and those that ended since somebody asked."""

    def __init__(self) -> None:
        self._jobs: set[Job] = set()
        self._finished: list[Finished] = []

    def begin(self, job: Job) -> None:
        """A job begins; it ends with ``settle``."""
        self._jobs.add(job)

    def refused(self, number: int, *, success: bool) -> None:
        """A job ended before anything began."""
        self._finished.append(
            Finished(job=number, success=success, arrived=None if success else frozenset(), size=0)
        )

    def ended(self, job: Job) -> None:
        """One of a job's packs was reported."""
        job.pending -= 1
        self.settle(job)

    def settle(self, job: Job) -> None:
        """Report a job if all of it was."""
        if not job.pending:
            self._report(job)

    def end_all(self) -> None:
        """End every job as failed; none touches host memory after this."""
        for job in list(self._jobs):
            job.cancel.cancel()
            job.failed = True
            job.arrived.clear()
            self._report(job)

    def take_finished(self) -> list[Finished]:
        """Return the jobs that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _report(self, job: Job) -> None:
        self._jobs.discard(job)
        if job.reported:
            return
        job.reported = True
        # A thread that still runs was cancelled, and asks before it touches a row. Descriptors
        # that stayed open would keep memory that is counted as given back.
        job.rows.close()
        self._finished.append(
            Finished(
                job=job.number,
                success=not job.failed,
                arrived=frozenset(job.arrived) if job.load else None,
                size=None if job.load else job.moved,
            )
        )
