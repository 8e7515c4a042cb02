"""What the scheduler side remembers of a request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvoffload_api.wire.messages import MatchReply, NewRequest
from kvoffload_api.wire.params import pack_params

# A match leases its keys until the engine's next step but one (DESIGN section 4, "Leases"), so an
# answer asked for before that may name chunks that are gone.
_LEASE_STEPS = 1


@dataclass(slots=True, kw_only=True)
class Question:
    """A lookup that was sent, and its answer once it has come."""

    seq: int
    computed: int
    max_new_tokens: int | None
    sent_at_step: int
    reply: MatchReply | None = None

    def answers(self, *, computed: int, max_new_tokens: int | None, step: int) -> bool:
        """Whether this is the same question, and its answer, if it has come, is still leased."""
        return (
            self.computed == computed
            and self.max_new_tokens == max_new_tokens
            and (self.reply is None or step - self.sent_at_step <= _LEASE_STEPS)
        )


@dataclass(slots=True, kw_only=True)
class RequestState:
    """One request; registrations that know it (``announced``) and its blocks (``tabled``).

    ``late``: how often a lookup missed the hook deadline. ``local``: computed tokens of the last
    lookup. ``told_tokens``: ``num_tokens`` as the agent knows it.
    """

    handle: int
    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    params: Any
    skip_reading_prefix_cache: bool
    hashes: bytearray = field(default_factory=bytearray)
    announced: int | None = None
    tabled: int | None = None
    question: Question | None = None
    late: int = 0
    local: int = 0
    told_tokens: int = 0

    def announcement(self) -> NewRequest:
        """Return the message that announces the request as it is now."""
        return NewRequest(
            handle=self.handle,
            request_id=self.request_id,
            num_tokens=self.num_tokens,
            num_prompt_tokens=self.num_prompt_tokens,
            hashes=bytes(self.hashes),
            params=pack_params(self.params),
            skip_reading_prefix_cache=self.skip_reading_prefix_cache,
        )
