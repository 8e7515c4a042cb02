"""State of one request in the reference engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tests.engine.trace import TOKENS_PER_BLOCK, TraceRequest


class Status(Enum):
    WAITING = "waiting"
    WAITING_FOR_KV = "waiting for KV"
    RUNNING = "running"
    PREEMPTED = "preempted"
    ABORTED = "aborted"


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """``num_tokens`` are known, ``computed`` of them have KV; ``hashes`` are of all its tokens.

    ``recompute``: a load failed, so that the rest is computed without asking again.
    ``told``: hashes that the session knows. ``loading``: tokens on their way beyond ``local``.
    """

    trace: TraceRequest
    hashes: list[bytes]
    handle: int = 0
    status: Status = Status.WAITING
    num_tokens: int = 0
    computed: int = 0
    local: int = 0
    loading: int = 0
    table: list[int] = field(default_factory=list)
    recompute: bool = False
    told: int = 0
    scheduled_before: bool = False

    def known_hashes(self) -> list[bytes]:
        """Return the hashes of blocks whose tokens are all known."""
        return self.hashes[: self.num_tokens // TOKENS_PER_BLOCK]

    @property
    def ended(self) -> bool:
        return self.num_tokens >= self.trace.num_tokens


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold so many tokens."""
    return -(-tokens // TOKENS_PER_BLOCK)
