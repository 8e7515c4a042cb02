"""What the reference engine counts, as JSON lines."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PERIOD_SECONDS = 0.25


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counters since the start.

    ``refused_tokens``: by policy, tokens beyond a load cap, whether or not they were stored.
    """

    requests: int = 0
    requests_done: int = 0
    requests_aborted: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    gpu_hit_tokens: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    largest_load_tokens: int = 0
    stored_tokens: int = 0
    stored_bytes: int = 0
    recomputed_tokens: int = 0
    failed_loads: int = 0
    failed_stores: int = 0
    asked_later: int = 0
    bytes_verified: int = 0
    mismatches: int = 0
    connected: bool = False
    refused_tokens: Counter[str] = field(default_factory=Counter)

    def refuse(self, policy: str, tokens: int) -> None:
        self.refused_tokens[policy] += tokens

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class StatsFile:
    """Appends a line each quarter of a second, and one at the end."""

    def __init__(self, path: Path | None, *, name: str) -> None:
        self._file = path.open("a", encoding="utf-8") if path else None
        self._name = name
        self._begun = time.monotonic()
        self._next = 0.0

    def write(self, stats: Stats, *, last: bool = False) -> None:
        elapsed = time.monotonic() - self._begun
        if self._file is None or (elapsed < self._next and not last):
            return
        self._next = elapsed + _PERIOD_SECONDS
        line = {"engine": self._name, "seconds": round(elapsed, 3), "last": last}
        self._file.write(json.dumps(line | stats.as_dict()) + "\n")
        self._file.flush()
        if last:
            self._file.close()
