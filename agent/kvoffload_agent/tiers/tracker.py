"""Counts how often a key was offered, for the store threshold (``scheduler.md`` 6.4)."""

from __future__ import annotations

from itertools import islice

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
        counts = self.counts
        offered = [(run.group, key) for run in runs for key in run.hashes]
        new = []
        for key in offered:
            seen = counts.pop(key, 0)
            if seen:
                counts[key] = seen + 1
            else:
                new.append(key)
        self._insert(new, known=len(offered) - len(new))
        return [
            [counts.get((run.group, key), 0) >= self.threshold for key in run.hashes]
            for run in runs
        ]

    def _insert(self, new: list[Key], *, known: int) -> None:
        """Insert keys; those that were there before this offer make room, the oldest first.

        ``known``: keys of this offer that are there already, as the most recent ones.
        """
        counts = self.counts
        new = new[: max(self._size - known, 0)]
        excess = len(counts) + len(new) - self._size
        if excess > 0:
            for key in list(islice(counts, excess)):
                del counts[key]
        counts.update(dict.fromkeys(new, 1))
