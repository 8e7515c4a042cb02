"""A secondary tier as the recorded cases describe it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracle.names import Names

from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots


@dataclass(frozen=True)
class Submitted:
    """A call of ``submit_store`` or ``submit_load``."""

    function: str
    job: int
    keys: frozenset[Key]


class RecordedTier:
    """Holds keys only; transfers end at the next poll, or when the case says so."""

    def __init__(self, config: dict[str, Any], names: Names) -> None:
        medium, locality = config.get("medium"), config.get("locality")
        self.medium = medium.lower() if medium else None
        self.locality = locality.lower() if locality else None
        self.request_level = config.get("policy", "chunk_level") == "request_level"
        self.keys = {names.key(name) for name in config.get("preload") or []}
        self.submitted: list[Submitted] = []
        self._auto = config.get("auto", True)
        self._retries = config.get("retry_lookups", 0)
        self._lookups: Counter[tuple[int, Key]] = Counter()
        self._running: dict[int, tuple[bool, Sequence[Key]]] = {}
        self._finished: list[Finished] = []

    def lookup(self, request: int, key: Key) -> Verdict:
        """Answer RETRY the first few times that a request asks for a key."""
        self._lookups[request, key] += 1
        if self._lookups[request, key] <= self._retries:
            return Verdict.RETRY
        return Verdict.HIT if key in self.keys else Verdict.MISS

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin a store."""
        if self._auto:
            # Such a tier is done at once; only the report waits for the next poll.
            self.keys.update(keys)
        self._begin("submit_store", job, keys, load=False)

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        """Begin a load."""
        self._begin("submit_load", job, keys, load=True)

    def _begin(self, function: str, job: int, keys: Sequence[Key], *, load: bool) -> None:
        self.submitted.append(Submitted(function, job, frozenset(keys)))
        self._running[job] = (load, keys)

    def poll(self) -> Sequence[Finished]:
        """Return what ended."""
        if self._auto:
            self.end(list(self._running), success=True, arrived=None)
        finished, self._finished = self._finished, []
        return finished

    def drain(self) -> None:
        """End everything: the recorded engine waits for its tiers at a reset."""
        self.end(None, success=True, arrived=None)

    def finish(self, request: int) -> None:
        """Nothing to forget."""

    def end(
        self, jobs: Iterable[int] | None, *, success: bool, arrived: Iterable[Key] | None
    ) -> None:
        """Let jobs end, all that run by default."""
        came = None if arrived is None else frozenset(arrived)
        for job in list(self._running) if jobs is None else jobs:
            load, keys = self._running.pop(job)
            if not load:
                self.keys.update(keys if success else came or ())
            self._finished.append(Finished(job=job, success=success, arrived=came))
