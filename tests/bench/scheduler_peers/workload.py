"""What both schedulers are given: hashes, groups and how much is resident."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TOKENS_PER_BLOCK = 16
HASH_BYTES = 32

# vLLM's default; its hashes are sha256 digests.
Hashes = list[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """``window``: tokens of a second, sliding-window group; 0 = full attention alone."""

    window: int = 0
    policy: str = "lru"

    @property
    def num_groups(self) -> int:
        """Full attention, and the window if there is one."""
        return 2 if self.window else 1


def hashes(name: str, count: int) -> Hashes:
    """Return ``count`` block hashes, new objects each time: nobody has hashed them before.

    An engine has just computed the hashes that it looks up, so no dict knows theirs.
    """
    blob = hashlib.shake_256(name.encode()).digest(count * HASH_BYTES)
    return [blob[at : at + HASH_BYTES] for at in range(0, len(blob), HASH_BYTES)]


class Peer(Protocol):
    """One scheduler with its host memory. Methods ``prepare_*`` are not timed."""

    def fill(self, group: int, keys: Hashes) -> None:
        """Make chunks of one finished request resident and readable."""

    def prepare_match(self, keys: Hashes) -> object:
        """Return what ``match`` takes."""

    def match(self, prepared: object) -> int | None:
        """Announce a request and return how many of its tokens can be loaded."""

    def forget(self, prepared: object) -> None:
        """Drop the request."""

    def prepare_store(self, keys: Hashes) -> object:
        """Announce and look up a new request, and return its first step."""

    def store(self, prepared: object) -> int:
        """Build the step; return the number of blocks to be stored."""

    def stored(self, prepared: object) -> None:
        """Finish the copies and the request."""

    def prepare_offer(self, keys: Hashes) -> object:
        """Return what ``offer`` takes."""

    def offer(self, prepared: object) -> int:
        """Offer keys to host memory; return how many are to be stored."""

    def offered(self, prepared: object) -> None:
        """Finish their copies and the request."""

    def prepare_decode(self, requests: Sequence[Hashes]) -> object:
        """Announce running requests, computed up to within a block; return a step of them."""

    def decode(self, prepared: object) -> int:
        """Build the step; return the number of stores."""
