"""Counters: one set per namespace as Prometheus metrics, one per session for ``/debug/state``."""

from __future__ import annotations

from collections import Counter as Tally
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter

Direction = str
"""``load`` or ``store``."""


class Metrics:
    """The agent's own registry; labels are namespaces, fields and policies, never requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        namespace = ["namespace"]
        self.requests = self._counter("requests", "Requests that engines announced", namespace)
        self.matched = self._counter(
            "matched_tokens", "Tokens that lookups said can be loaded", namespace
        )
        self.tokens = self._counter(
            "tokens", "Tokens of completed copies", ["namespace", "direction"]
        )
        self.bytes = self._counter(
            "copied_bytes", "Bytes of completed copies, all ranks", ["namespace", "direction"]
        )
        self.failed = self._counter(
            "failed_copies", "Jobs that at least one rank failed", ["namespace", "direction"]
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

    def _counter(self, name: str, text: str, labels: list[str]) -> Counter:
        return Counter(f"kvoffload_{name}", text, labels, registry=self.registry)


@dataclass(slots=True)
class SessionStats:
    """Figures of one session; each also counts in the namespace's metrics."""

    namespace: str
    metrics: Metrics
    requests: int = 0
    matches: int = 0
    matched_tokens: int = 0
    steps: int = 0
    tokens: Tally[Direction] = field(default_factory=Tally)
    bytes: Tally[Direction] = field(default_factory=Tally)
    jobs: Tally[Direction] = field(default_factory=Tally)
    failed: Tally[Direction] = field(default_factory=Tally)
    limited: Tally[tuple[str, str]] = field(default_factory=Tally)
    invalid: Tally[str] = field(default_factory=Tally)

    def request(self, *, invalid: tuple[str, ...]) -> None:
        """Count a new request and the fields of it that were malformed."""
        self.requests += 1
        self.metrics.requests.labels(self.namespace).inc()
        for name in invalid:
            self.invalid[name] += 1
            self.metrics.invalid.labels(self.namespace, name).inc()

    def match(self, *, tokens: int, limited_by: str, policy: str) -> None:
        """Count a lookup's answer."""
        self.matches += 1
        self.matched_tokens += tokens
        self.metrics.matched.labels(self.namespace).inc(tokens)
        if limited_by:
            self.limit(field=limited_by, policy=policy)

    def limit(self, *, field: str, policy: str) -> None:
        """Count a decision that a policy shortened."""
        self.limited[field, policy] += 1
        self.metrics.limited.labels(self.namespace, field, policy).inc()

    def copied(self, direction: Direction, *, tokens: int, size: int) -> None:
        """Count a job that every rank completed; ``size`` in bytes over all ranks."""
        self.jobs[direction] += 1
        self.tokens[direction] += tokens
        self.bytes[direction] += size
        self.metrics.tokens.labels(self.namespace, direction).inc(tokens)
        self.metrics.bytes.labels(self.namespace, direction).inc(size)

    def copy_failed(self, direction: Direction) -> None:
        """Count a job that failed on a rank."""
        self.failed[direction] += 1
        self.metrics.failed.labels(self.namespace, direction).inc()

    def as_json(self) -> dict[str, object]:
        """Return the figures for ``/debug/state``."""
        return {
            "requests": self.requests,
            "matches": self.matches,
            "steps": self.steps,
            "tokens_matched": self.matched_tokens,
            "tokens_loaded": self.tokens["load"],
            "tokens_stored": self.tokens["store"],
            "bytes_loaded": self.bytes["load"],
            "bytes_stored": self.bytes["store"],
            "loads": self.jobs["load"],
            "stores": self.jobs["store"],
            "loads_failed": self.failed["load"],
            "stores_failed": self.failed["store"],
            "limited": [
                {"field": name, "policy": policy, "count": count}
                for (name, policy), count in sorted(self.limited.items())
            ],
            "invalid": dict(sorted(self.invalid.items())),
        }
