"""State of one request and of one job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, Group
from kvoffload_agent.scheduler.types import Blocks, RequestCaps
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.slots import Slots

FINISHED: Final = "stopped"
ABORTED: Final = "aborted"
_ENDLESS: Final = 1 << 62


class RequestState:
    """What the scheduler knows of a request; lists are per group.

    ``local``: tokens that the engine had computed at the last query. ``promised``: where the hit
    that it was answered ends, 0 if there is none; ``tail``: the same if that is inside a chunk.
    ``sync``: that hit is to be loaded before the forward of the step that allocates for it.
    ``next_store``: first chunk not offered yet. ``wake_at``: tokens below which no chunk becomes
    storable. ``waiting_since``: when it first waited for a chunk. ``refused``: what was offered in
    vain, and to which state of the pool. ``blocks``: block table, 0 = outside the window;
    ``contents``: of windowed groups, what each block of it held when the table got it.
    ``closed``: it ended and nothing of it will be offered any more; it is remembered while its
    copies run.
    """

    def __init__(
        self,
        *,
        handle: int,
        geometry: Geometry,
        pool_request: PoolRequest,
        caps: RequestCaps,
        num_prompt: int,
        skip_reading: bool,
    ) -> None:
        self.handle = handle
        self.pool_request = pool_request
        self.caps = caps
        self.num_tokens = 0
        self.num_prompt = num_prompt
        self.skip_reading = skip_reading
        self.hashes: list[bytes] = []
        self.keys: list[list[bytes]] = [
            self.hashes if group.stride == 1 else [] for group in geometry.groups
        ]
        self.blocks: list[list[int]] = [[] for _ in geometry.groups]
        self.contents: list[list[int]] = [[] for _ in geometry.groups]
        self.next_store = [0] * len(geometry.groups)
        self.jobs: dict[int, Job] = {}
        self.waiting_since: float | None = None
        self.refused: tuple[object, ...] | None = None
        self.wake_at = 0
        self.local = 0
        self.promised = 0
        self.sync = False
        self.tail = 0
        self.loaded = False
        self.junctions: set[int] = set()
        self.status = ""
        self.computed_at_end = 0
        self.closed = False
        self._geometry = geometry

    def grow(self, num_tokens: int, hashes: Sequence[bytes]) -> None:
        """Append hashes; the request has ``num_tokens`` now."""
        self.num_tokens = num_tokens
        before = len(self.hashes)
        self.hashes += hashes
        for group in self._geometry.groups:
            if group.stride > 1:
                first = before - before % group.stride + group.stride - 1
                self.keys[group.number] += self.hashes[first :: group.stride]

    def reset_cursor(self) -> None:
        """Forget block tables; everything is offered anew."""
        self.blocks = [[] for _ in self.blocks]
        self.contents = [[] for _ in self.contents]
        self.rewind()

    def rewind(self) -> None:
        """Everything is offered anew."""
        self.next_store = [0] * len(self.next_store)
        self.wake_at = 0
        self.refused = None

    def sleep(self) -> None:
        """Find out how many tokens it takes until another chunk can be stored."""
        groups = self._geometry.groups
        nearest = min(
            (chunks + 1) * group.chunk
            for chunks, group in zip(self.next_store, groups, strict=True)
        )
        limit = self.storable_tokens(_ENDLESS, grown=True)
        self.wake_at = nearest if nearest <= limit else _ENDLESS

    def key_at(self, boundary: int) -> bytes | None:
        """Return the hash of tokens ``[0, boundary)``, None if it is not known."""
        at = boundary // self._geometry.tokens_per_hash - 1
        return self.hashes[at] if 0 <= at < len(self.hashes) else None

    def storable_tokens(self, tokens: int, *, grown: bool = False) -> int:
        """Return how many of ``tokens`` may be offloaded under the caps.

        ``grown``: whatever tokens the request may still get.
        """
        if not grown:
            tokens = min(tokens, self.num_tokens)
        if self.caps.max_offload_tokens is not None:
            tokens = min(tokens, self.caps.max_offload_tokens)
        if self.caps.prompt_only:
            tokens = min(tokens, self.num_prompt)
        return tokens

    @property
    def tokens_at_end(self) -> int:
        """Tokens whose KV was written when the request ended: the last sampled one was not."""
        if self.status == ABORTED:
            return self.computed_at_end
        return max(self.num_prompt, self.num_tokens - 1)


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A load or a store. ``left``: acknowledgements still to come, one for each worker.

    ``slots``: pinned or being written. ``fenced``: its source blocks that are fenced already;
    ``sources``: those that will be when the request ends. ``loading``: keys by group.
    """

    number: int
    request: RequestState
    store: bool
    left: int
    slots: Slots
    fenced: list[Blocks]
    sources: list[Blocks]
    loading: list[tuple[int, Sequence[bytes]]]
    failed: bool = False


def positions(group: Group, first: int, count: int) -> Slots:
    """Return the ends of ``count`` chunks from chunk ``first`` on, in tokens."""
    chunk = group.chunk
    return np.arange((first + 1) * chunk, (first + count) * chunk + 1, chunk, dtype=np.int64)
