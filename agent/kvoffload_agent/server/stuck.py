"""Memory that engines keep although they were told to leave: nobody can take it from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kvoffload_agent.server.session import Session

# A healthy engine has unmapped everything within a second of its connection's end.
STUCK_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """``bytes`` of segments, each counted once, and ``pods`` (namespace/name) that keep them."""

    bytes: int
    pods: tuple[str, ...]

    @property
    def text(self) -> str:
        """Say what is wrong and who can end it, ``""`` if nothing is."""
        if not self.pods:
            return ""
        return (
            f"{self.bytes} bytes cannot be given back: {', '.join(self.pods)} ended or was"
            f" disconnected over {STUCK_SECONDS:.0f} s ago and keeps them mapped; delete the pod"
        )


def stuck_memory(sessions: Iterable[Session], *, now: float) -> Stuck:
    """Return what sessions keep whose end is so long ago; ``now`` is monotonic seconds."""
    held: dict[int, int] = {}
    pods: set[str] = set()
    for session in sessions:
        if session.ended_at is None or now - session.ended_at < STUCK_SECONDS:
            continue
        for worker in session.workers.values():
            if worker.held:
                held |= worker.held
                pods.add(f"{session.identity.namespace}/{session.identity.pod}")
    return Stuck(bytes=sum(held.values()), pods=tuple(sorted(pods)))
