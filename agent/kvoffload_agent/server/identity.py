"""Who an engine is: from its uid or token when standalone, from a TokenReview in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvoffload_agent.server.listener import Peer


class IdentityError(Exception):
    """The peer is nobody that this agent serves; the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A pod, or a local process that stands for one.

    ``uid`` picks the compiled entry in a cluster; ``labels`` let policies select a local process.
    """

    namespace: str
    pod: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


class Identifier(Protocol):
    """Turns what a peer presents into an identity."""

    async def identify(self, *, token: str, peer: Peer) -> Identity:
        """Return who the peer is.

        Raises:
            IdentityError: nobody that this agent serves.
        """
