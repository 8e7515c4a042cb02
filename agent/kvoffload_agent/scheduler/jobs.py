"""Jobs of one engine: numbers, acknowledgements, fences, and what a reset leaves behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kvoffload_agent.scheduler.fences import Fences
from kvoffload_agent.scheduler.request import Job, RequestState
from kvoffload_agent.scheduler.types import Blocks
from kvoffload_agent.tiers.slots import Slots


class Jobs:
    """Loads and stores that workers have not acknowledged."""

    def __init__(self, *, num_workers: int) -> None:
        self.fences = Fences()
        self.loads_of_step: list[int] = []
        self._num_workers = num_workers
        self._jobs: dict[int, Job] = {}
        self._next = 0
        self._reset_left: dict[int, int] = {}
        self._held: dict[int, Job] = {}
        self._flush: set[int] = set()
        self._loading: dict[int, dict[bytes, int]] = {}

    def open(
        self,
        request: RequestState,
        *,
        store: bool,
        slots: Slots,
        sources: Sequence[Blocks] = (),
        fenced: Sequence[Blocks] = (),
        loading: Sequence[tuple[int, Sequence[bytes]]] = (),
    ) -> Job:
        """Make a job. ``fenced``: source blocks that may be re-allocated from now on."""
        job = Job(
            number=self._next,
            request=request,
            store=store,
            left=self._num_workers,
            slots=slots,
            fenced=list(fenced),
            sources=list(sources),
            loading=list(loading),
        )
        self._next += 1
        self._jobs[job.number] = job
        request.jobs[job.number] = job
        self.fences.add(job.number, fenced)
        for group, hashes in loading:
            table = self._loading.setdefault(group, {})
            for key in hashes:
                table[key] = table.get(key, 0) + 1
        if not store:
            self.loads_of_step.append(job.number)
        return job

    @property
    def next(self) -> int:
        """Number of the next job."""
        return self._next

    def acknowledge(self, number: int, *, success: bool) -> Job | None:
        """Count one worker's acknowledgement; return the job if it was the last one."""
        if number in self._reset_left:
            self._reset_left[number] -= 1
            if self._reset_left[number] > 0:
                return None
            del self._reset_left[number]
            return self._held.pop(number, None)
        job = self._jobs.get(number)
        if job is None:
            return None
        job.failed |= not success
        job.left -= 1
        if job.left > 0:
            return None
        self._close(job)
        return job

    def fence_sources(self, request: RequestState) -> None:
        """A request ended: its blocks can be re-allocated."""
        for job in request.jobs.values():
            self.fences.add(job.number, job.sources)
            job.fenced += job.sources
            job.sources = []

    @property
    def loading(self) -> bool:
        """Whether any asynchronous load is under way."""
        return any(self._loading.values())

    def is_loading(self, group: int, hashes: Iterable[bytes]) -> bool:
        """Whether an asynchronous load of any of these keys is under way."""
        table = self._loading.get(group)
        return table is not None and any(key in table for key in hashes)

    def flush(self, numbers: Iterable[int]) -> None:
        """Let workers wait for jobs before they do anything of the next step."""
        self._flush.update(numbers)

    def take_flush(self) -> tuple[int, ...]:
        """Return the flush set of the step, ascending."""
        flush, self._flush = self._flush, set()
        return tuple(sorted(flush))

    def take_loads(self) -> tuple[int, ...]:
        """Return the loads that begin with this step."""
        loads, self.loads_of_step = self.loads_of_step, []
        return tuple(loads)

    def reset(self, *, hold: bool) -> Slots:
        """Flush and forget every job; return the slots that are free now, once per use.

        ``hold``: none are, before the job that uses them is acknowledged.
        """
        slots = [] if hold else [job.slots for job in self._jobs.values()]
        if hold:
            self._held.update(self._jobs)
        for job in self._jobs.values():
            self._reset_left[job.number] = job.left
            job.request.jobs.clear()
        self.flush(self._jobs)
        self._jobs = {}
        self._loading = {}
        self.fences.clear()
        return np.concatenate(slots) if slots else np.empty(0, dtype=np.int64)

    def open_jobs(self) -> list[Job]:
        """Return the jobs that are not acknowledged by all workers."""
        return list(self._jobs.values())

    def held_jobs(self) -> list[Job]:
        """Return the jobs that a reset forgot and whose slots wait for them."""
        return list(self._held.values())

    @property
    def resetting(self) -> bool:
        """Whether copies from before a reset are still to be acknowledged."""
        return bool(self._reset_left)

    @property
    def busy(self) -> bool:
        """Whether anything is to be acknowledged."""
        return bool(self._jobs or self._reset_left)

    def _close(self, job: Job) -> None:
        del self._jobs[job.number]
        del job.request.jobs[job.number]
        self.fences.remove(job.number, job.fenced)
        for group, hashes in job.loading:
            table = self._loading[group]
            for key in hashes:
                table[key] -= 1
                if not table[key]:
                    del table[key]
