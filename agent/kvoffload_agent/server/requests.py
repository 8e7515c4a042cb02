"""The live requests of a session and what policy allows each of them at this moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvoffload_agent.scheduler.types import RequestCaps
from kvoffload_agent.server.engine import Entry, Policies, Resolved
from kvoffload_agent.server.identity import Identity
from kvoffload_agent.server.stats import SessionStats
from kvoffload_agent.server.translate import WireError
from kvoffload_api.resolution import essence

# vLLM runs at most some thousand sequences and queues some ten thousand; a bound keeps a
# broken client from filling the agent.
MAX_REQUESTS: Final = 200_000
# Who shortens a request while its engine's workers have not mapped any memory.
NOT_READY: Final = "agent/not-ready"


@dataclass(slots=True)
class RequestState:
    """What its parameters ask for, kept so that a policy change applies to a running request."""

    params: Mapping[str, Any]
    resolved: Resolved


class RequestTable:
    """Resolves caps when a request arrives, and again when policy or readiness changes.

    While a session is not ready nothing may be loaded or stored, whatever policy says: its workers
    cannot reach every slot.
    """

    def __init__(self, *, policies: Policies, stats: SessionStats) -> None:
        self._policies = policies
        self._stats = stats
        self._requests: dict[int, RequestState] = {}
        self._epoch: tuple[int, bool] | None = None
        self._ready = False
        self.entry: Entry | None = None

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

    def add(self, handle: int, *, params: object) -> RequestCaps:
        """Resolve a new request.

        Raises:
            WireError: the handle was used before, or there are too many requests.
        """
        if handle in self._requests:
            raise WireError(f"handle {handle} is in use")
        if len(self._requests) >= MAX_REQUESTS:
            raise WireError(f"more than {MAX_REQUESTS} requests: finished ones must be told")
        resolved = self._resolve(params)
        self._requests[handle] = RequestState(params=essence(params), resolved=resolved)
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

    def forget(self, handle: int) -> None:
        """Drop a request that the engine has finished."""
        self._requests.pop(handle, None)

    def _resolve(self, params: object) -> Resolved:
        if self._ready:
            return self._policies.resolve(self.entry, params)
        nothing = self._policies.resolve(None, params)
        if self.entry is None:
            return nothing
        # Not the policy's doing: whoever reads metrics must not look for it there.
        sources = dict.fromkeys(nothing.caps.sources, NOT_READY)
        return replace(nothing, caps=replace(nothing.caps, sources=sources))
