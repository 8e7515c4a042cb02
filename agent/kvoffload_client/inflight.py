"""The client's own table of KV blocks with copies in flight; it alone decides flushes.

It needs no agent, so that fences hold when the agent is gone (DESIGN section 4, "Two deadlines").
Source of the rule: ``scheduler.md`` section 5, "Fences" and "Preemption". Source blocks of every
kind are entered when their job is created: a block of full attention is re-allocated only after its
request finished or was preempted, so entering it earlier asks for no more flushes than waiting
until then would.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvoffload_client.jobs import Job, JobKey


class BlocksInFlight:
    """Which jobs read or write which blocks of which request; sans I/O."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, tuple[int, frozenset[int]]] = {}
        self._by_block: dict[int, set[JobKey]] = {}
        self._by_handle: dict[int, set[JobKey]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, key: JobKey) -> bool:
        return key in self._jobs

    def add(self, job: Job, blocks: Iterable[int]) -> None:
        """Enter a job that will copy from or to ``blocks``."""
        touched = frozenset(blocks)
        self._jobs[job.key] = (job.handle, touched)
        self._by_handle.setdefault(job.handle, set()).add(job.key)
        for block in touched:
            self._by_block.setdefault(block, set()).add(job.key)

    def remove(self, key: JobKey) -> None:
        """Forget a job that touches its blocks no more; unknown ones are ignored."""
        handle, blocks = self._jobs.pop(key, (0, frozenset()))
        _discard(self._by_handle, handle, key)
        for block in blocks:
            _discard(self._by_block, block, key)

    def touching(self, blocks: Iterable[int]) -> set[JobKey]:
        """Return the jobs that must end before any of these blocks is written."""
        found: set[JobKey] = set()
        for block in blocks:
            found |= self._by_block.get(block, frozenset())
        return found

    def of_request(self, handle: int) -> set[JobKey]:
        """Return the jobs of a request."""
        return set(self._by_handle.get(handle, ()))

    def all(self) -> set[JobKey]:
        """Return every job."""
        return set(self._jobs)


def _discard(index: dict[int, set[JobKey]], at: int, key: JobKey) -> None:
    keys = index.get(at)
    if keys is not None:
        keys.discard(key)
        if not keys:
            del index[at]
