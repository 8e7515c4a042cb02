"""Jobs in flight of one session: which ranks still have to say that they ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvoffload_api.wire.messages import Plan

Direction: TypeAlias = Literal["load", "store"]


@dataclass(slots=True)
class JobRecord:
    """One load or store. ``size`` in bytes of one rank. ``begun``: ranks that the agent copies for.

    ``plan``: for an engine that does not copy by itself.
    """

    direction: Direction
    tokens: int
    size: int
    plan: Plan | None = None
    waiting: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    failed: bool = False


class JobTable:
    """Counts acknowledgements by rank, so that each rank acknowledges a job once.

    A rank's report of a job that it does not owe is dropped: after a reconnect, or from a peer
    that lies, it must not end a job that another rank still copies.
    """

    def __init__(self, *, ranks: int) -> None:
        self._ranks = ranks
        self._jobs: dict[int, JobRecord] = {}

    def __len__(self) -> int:
        """Return the number of jobs in flight."""
        return len(self._jobs)

    def count(self, direction: Direction) -> int:
        """Return the number of jobs in flight of one direction."""
        return sum(record.direction == direction for record in self._jobs.values())

    def add(
        self, job: int, *, direction: Direction, tokens: int, size: int, plan: Plan | None = None
    ) -> None:
        """Remember a job that all ranks owe."""
        self._jobs[job] = JobRecord(
            direction=direction,
            tokens=tokens,
            size=size,
            plan=plan,
            waiting=set(range(self._ranks)),
        )

    def begin(self, job: int, *, rank: int) -> tuple[Direction, Plan] | None:
        """Return what the agent is to copy for a rank, once; None if the rank owes no such job."""
        record = self._jobs.get(job)
        if record is None or record.plan is None or rank not in record.waiting - record.begun:
            return None
        record.begun.add(rank)
        return record.direction, record.plan

    def owed_by(self, rank: int) -> list[int]:
        """Return the jobs that a rank has not acknowledged."""
        return [job for job, record in self._jobs.items() if rank in record.waiting]

    def direction(self, job: int) -> Direction:
        """Return ``load`` or ``store`` of a job in flight."""
        return self._jobs[job].direction

    def acknowledge(self, job: int, *, rank: int, ok: bool) -> bool:
        """Note a rank's report; False if the rank does not owe this job."""
        record = self._jobs.get(job)
        if record is None or rank not in record.waiting:
            return False
        record.waiting.discard(rank)
        record.failed |= not ok
        return True

    def take_finished(self, job: int) -> JobRecord | None:
        """Return and forget a job that no rank owes any more, else None."""
        record = self._jobs.get(job)
        if record is None or record.waiting:
            return None
        return self._jobs.pop(job)
