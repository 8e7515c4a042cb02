"""Counters: one set per namespace as Prometheus metrics, one per session for ``/debug/state``."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram

Direction = str
"""``load`` or ``store``."""


# Around the hook deadline of 5 ms (DESIGN section 4), beyond which an engine does without.
ANSWER_BUCKETS: Final = (0.0001, 0.0003, 0.001, 0.002, 0.005, 0.01, 0.05, 0.5)


class Metrics:
    """The agent's own registry; labels are namespaces, fields and policies, never requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.namespaces: dict[str, Figures] = {}
        """Since the agent started, also of engines that have left."""
        namespace = ["namespace"]
        self.requests = self._counter("requests", "Requests that engines announced", namespace)
        self.matched = self._counter(
            "matched_tokens", "Tokens that lookups said can be loaded", namespace
        )
        self.tokens = self._counter(
            "tokens", "Tokens of completed copies", ["namespace", "direction"]
        )
        self.planned = self._counter(
            "planned_load_tokens",
            "Tokens of loads that were planned, by the tier that had them",
            ["namespace", "source"],
        )
        self.bytes = self._counter(
            "copied_bytes", "Bytes of completed copies, all ranks", ["namespace", "direction"]
        )
        self.failed = self._counter(
            "failed_copies", "Jobs that at least one rank failed", ["namespace", "direction"]
        )
        self.evicted = self._counter(
            "evicted_chunks", "Chunks that left host memory for others", namespace
        )
        self.limited = self._counter(
            "limited", "Decisions that a policy shortened", ["namespace", "field", "policy"]
        )
        self.invalid = self._counter(
            "request_invalid",
            "Malformed fields of requests, treated as if absent",
            ["namespace", "field"],
        )
        self.refused = self._counter("refused", "Questions and connections refused", ["code"])
        self.disconnected = self._counter(
            "disconnected", "Sessions that the agent ended", ["reason"]
        )
        self.pressure = self._counter(
            "pressure_steps", "Times that memory was given back or allowed again", ["step"]
        )

        self.answers = Histogram(
            "kvoffload_answer_seconds",
            "Time to answer an engine, from the whole message to the reply handed to the kernel",
            ["message"],
            buckets=ANSWER_BUCKETS,
            registry=self.registry,
        )

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"kvoffload_{name}", text, labels, registry=self.registry)


# What ``/debug/state`` shows for a session and for a namespace, 0 where nothing happened.
FIGURES: Final = (
    "requests",
    "matches",
    "steps",
    "tokens_matched",
    "chunks_evicted",
    "tokens_loaded",
    "tokens_stored",
    "bytes_loaded",
    "bytes_stored",
    "loads",
    "stores",
    "loads_failed",
    "stores_failed",
)


class Figures:
    """Plain counters, for JSON."""

    def __init__(self) -> None:
        self.counts: Tally[str] = Tally()
        self.limited: Tally[tuple[str, str]] = Tally()
        self.invalid: Tally[str] = Tally()

    def as_json(self) -> dict[str, Any]:
        """Return all figures with fixed names."""
        return {
            **{name: self.counts[name] for name in FIGURES},
            "limited": [
                {"field": field, "policy": policy, "count": count}
                for (field, policy), count in sorted(self.limited.items())
            ],
            "invalid": dict(sorted(self.invalid.items())),
        }


class SessionStats:
    """Counts one session's events, in its own figures, its namespace's and the metrics."""

    def __init__(self, *, namespace: str, metrics: Metrics) -> None:
        self.namespace = namespace
        self.metrics = metrics
        self.figures = Figures()
        self._all = (self.figures, metrics.namespaces.setdefault(namespace, Figures()))

    def request(self, *, invalid: tuple[str, ...]) -> None:
        """Count a new request and the fields of it that were malformed."""
        self._count("requests", 1)
        self.metrics.requests.labels(self.namespace).inc()
        for name in invalid:
            for figures in self._all:
                figures.invalid[name] += 1
            self.metrics.invalid.labels(self.namespace, name).inc()

    def match(self, *, tokens: int, limited_by: str, policy: str) -> None:
        """Count a lookup's answer."""
        self._count("matches", 1)
        self._count("tokens_matched", tokens)
        self.metrics.matched.labels(self.namespace).inc(tokens)
        if limited_by:
            self.limit(field=limited_by, policy=policy)

    def planned(self, sources: Mapping[str, int]) -> None:
        """Count the tokens of a load that was planned, by the tier that each came from."""
        for source, tokens in sources.items():
            self.metrics.planned.labels(self.namespace, source).inc(tokens)

    def step(self, *, evicted: int) -> None:
        """Count a scheduling step, and the chunks that were evicted in its partition."""
        self._count("steps", 1)
        if evicted:
            self._count("chunks_evicted", evicted)
            self.metrics.evicted.labels(self.namespace).inc(evicted)

    def limit(self, *, field: str, policy: str) -> None:
        """Count a decision that a policy shortened."""
        for figures in self._all:
            figures.limited[field, policy] += 1
        self.metrics.limited.labels(self.namespace, field, policy).inc()

    def copied(self, direction: Direction, *, tokens: int, size: int) -> None:
        """Count a job that every rank completed; ``size`` in bytes over all ranks."""
        done = "loaded" if direction == "load" else "stored"
        self._count(f"{direction}s", 1)
        self._count(f"tokens_{done}", tokens)
        self._count(f"bytes_{done}", size)
        self.metrics.tokens.labels(self.namespace, direction).inc(tokens)
        self.metrics.bytes.labels(self.namespace, direction).inc(size)

    def copy_failed(self, direction: Direction) -> None:
        """Count a job that failed on a rank."""
        self._count(f"{direction}s_failed", 1)
        self.metrics.failed.labels(self.namespace, direction).inc()

    def _count(self, name: str, amount: int) -> None:
        for figures in self._all:
            figures.counts[name] += amount
