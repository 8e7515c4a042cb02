"""Blocks that a copy still reads: whoever gets one of them has to wait for the copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvoffload_agent.scheduler.types import Blocks


class Fences:
    """Block id → jobs that read it."""

    def __init__(self) -> None:
        self._jobs: dict[int, set[int]] = {}

    def add(self, job: int, tables: Sequence[Blocks]) -> None:
        """Fence the source blocks of a job."""
        for table in tables:
            for block in table.tolist():
                self._jobs.setdefault(block, set()).add(job)

    def remove(self, job: int, tables: Sequence[Blocks]) -> None:
        """A job ended."""
        for table in tables:
            for block in table.tolist():
                jobs = self._jobs.get(block)
                if jobs is not None:
                    jobs.discard(job)
                    if not jobs:
                        del self._jobs[block]

    def crossed(self, blocks: Iterable[int]) -> set[int]:
        """Return the jobs that read any of these blocks."""
        if not self._jobs:
            return set()
        crossed: set[int] = set()
        for block in blocks:
            crossed |= self._jobs.get(block, set())
        return crossed

    def clear(self) -> None:
        """Every job was flushed."""
        self._jobs = {}
