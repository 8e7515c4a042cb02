"""Counts how often a key was offered, for the store threshold (``scheduler.md`` 6.4)."""

from __future__ import annotations

from kvoffload_agent.tiers.policy.base import KeyRun

Key = tuple[int, bytes]


class OfferTracker:
    """A bounded LRU of counts; keys of the present offer are not evicted for each other."""

    def __init__(self, *, threshold: int, size: int) -> None:
        self.threshold = threshold
        self._size = size
        self.counts: dict[Key, int] = {}

    def count(self, runs: list[KeyRun]) -> list[list[bool]]:
        """Count one offer; return for each key of each run whether it was offered enough."""
        offered = {(run.group, key) for run in runs for key in run.hashes}
        return [
            [self._count((run.group, key), offered) >= self.threshold for key in run.hashes]
            for run in runs
        ]

    def _count(self, key: Key, offered: set[Key]) -> int:
        counts = self.counts
        seen = counts.pop(key, 0) + 1
        if seen == 1 and len(counts) >= self._size:
            oldest = next((old for old in counts if old not in offered), None)
            if oldest is None:
                return 0
            del counts[oldest]
        counts[key] = seen
        return seen

    def clear(self) -> None:
        """Forget every count."""
        self.counts = {}
