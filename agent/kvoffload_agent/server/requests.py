"""The live requests of a session and what policy allows each of them at this moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvoffload_agent.scheduler.types import RequestCaps
from kvoffload_agent.server.engine import Entry, Policies, Resolved
from kvoffload_agent.server.identity import Identity
from kvoffload_agent.server.quota import REQUEST_ENTRIES, Quota
from kvoffload_agent.server.stats import SessionStats
from kvoffload_agent.server.translate import WireError
from kvoffload_api.resolution import essence

# vLLM runs at most some thousand sequences and queues some ten thousand; a bound keeps a
# broken client from filling the agent.
MAX_REQUESTS: Final = 200_000
# 32 million tokens at 16 tokens a block, far more than a step schedules.
MAX_ALLOCATED: Final = 1 << 21
# Who shortens a request while its engine's workers have not mapped any memory.
NOT_READY: Final = "agent/not-ready"


@dataclass(slots=True)
class RequestState:
    """``params``: what its parameters ask for, to be asked of a changed policy again.

    ``hashes`` and ``blocks``: how many of each are remembered of it.
    """

    params: Mapping[str, Any]
    resolved: Resolved
    hashes: int
    blocks: int = 0
    finished: bool = False


class RequestTable:
    """Resolves caps when a request arrives, and again when policy or readiness changes.

    While a session is not ready nothing may be loaded or stored, whatever policy says: its workers
    cannot reach every slot.
    """

    def __init__(self, *, policies: Policies, stats: SessionStats, quota: Quota) -> None:
        self._policies = policies
        self._quota = quota
        self._stats = stats
        self._requests: dict[int, RequestState] = {}
        self._epoch: tuple[int, bool] | None = None
        self._ready = False
        self.entry: Entry | None = None
        self.allocated = 0
        """Block ids of allocations since the last step."""

    def __len__(self) -> int:
        """Return the number of live requests."""
        return len(self._requests)

    def follow(self, *, identity: Identity, ready: bool) -> list[tuple[int, RequestCaps]]:
        """Return the (handle, caps) that changed since the last call."""
        epoch = (self._policies.version, ready)
        if epoch == self._epoch:
            return []
        self._epoch = epoch
        self._ready = ready
        self.entry = self._policies.entry(identity)
        changed = []
        for handle, state in self._requests.items():
            resolved = self._resolve(state.params)
            if resolved.caps != state.resolved.caps:
                changed.append((handle, resolved.caps))
            state.resolved = resolved
        return changed

    def add(self, handle: int, *, params: object, hashes: int) -> RequestCaps:
        """Resolve a new request that has so many block hashes.

        Raises:
            WireError: the handle was used before, or there are too many requests or hashes.
        """
        if handle in self._requests:
            raise WireError(f"handle {handle} is in use")
        if len(self._requests) >= MAX_REQUESTS:
            raise WireError(f"more than {MAX_REQUESTS} requests: finished ones must be told")
        self._quota.take(REQUEST_ENTRIES + hashes)
        resolved = self._resolve(params)
        self._requests[handle] = RequestState(
            params=essence(params), resolved=resolved, hashes=hashes
        )
        self._stats.request(invalid=resolved.invalid)
        return resolved.caps

    def get(self, handle: int) -> RequestState:
        """Return a live request.

        Raises:
            WireError: the handle is unknown.
        """
        state = self._requests.get(handle)
        if state is None:
            raise WireError(f"handle {handle} is unknown")
        return state

    def known(self, handle: int) -> bool:
        """Whether a handle is live."""
        return handle in self._requests

    def grow(self, handle: int, *, hashes: int) -> None:
        """Count hashes that came later.

        Raises:
            WireError: the handle is unknown, or there are too many hashes.
        """
        state = self.get(handle)
        self._quota.take(hashes)
        state.hashes += hashes

    def tabled(self, handle: int, *, blocks: int, anew: bool) -> None:
        """Count the block ids of a live request's table; ``anew``: they replace the former ones.

        Raises:
            WireError: there are too many.
        """
        state = self.get(handle)
        before = state.blocks if anew else 0
        self._quota.take(blocks - before)
        state.blocks += blocks - before

    def allocate(self, blocks: int) -> None:
        """Count block ids that are remembered until the next step.

        Raises:
            WireError: there are too many.
        """
        if blocks > MAX_ALLOCATED - self.allocated:
            raise WireError(f"more than {MAX_ALLOCATED} blocks were allocated since the last step")
        self.allocated += blocks

    def forget(self, handle: int) -> None:
        """Drop a request that the engine has finished."""
        state = self._requests.pop(handle, None)
        if state is not None:
            self._quota.give_back(REQUEST_ENTRIES + state.hashes + state.blocks)

    def reset(self) -> None:
        """Drop requests that ended: a reset leaves nothing of them to be stored by a step."""
        for handle in [handle for handle, state in self._requests.items() if state.finished]:
            self.forget(handle)

    def clear(self) -> None:
        """Drop every request: the session is over."""
        for handle in list(self._requests):
            self.forget(handle)

    def _resolve(self, params: object) -> Resolved:
        if self._ready:
            return self._policies.resolve(self.entry, params)
        nothing = self._policies.resolve(None, params)
        if self.entry is None:
            return nothing
        # Not the policy's doing: whoever reads metrics must not look for it there.
        sources = dict.fromkeys(nothing.caps.sources, NOT_READY)
        return replace(nothing, caps=replace(nothing.caps, sources=sources))
