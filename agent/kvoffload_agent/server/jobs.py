"""Jobs in flight of one session: which ranks still have to say that they ended."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobRecord:
    """One load or store. ``size`` in bytes of one rank."""

    direction: str
    tokens: int
    size: int
    waiting: set[int] = field(default_factory=set)
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

    def add(self, job: int, *, direction: str, tokens: int, size: int) -> None:
        """Remember a job that all ranks owe."""
        self._jobs[job] = JobRecord(
            direction=direction, tokens=tokens, size=size, waiting=set(range(self._ranks))
        )

    def owed_by(self, rank: int) -> list[int]:
        """Return the jobs that a rank has not acknowledged."""
        return [job for job, record in self._jobs.items() if rank in record.waiting]

    def direction(self, job: int) -> str:
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
