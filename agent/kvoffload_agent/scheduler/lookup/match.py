"""Answers how many tokens can be loaded, and says what shortened the answer."""

from __future__ import annotations

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, ceil_div
from kvoffload_agent.scheduler.jobs import Jobs
from kvoffload_agent.scheduler.lookup.budget import SyncBudget
from kvoffload_agent.scheduler.lookup.chunks import ChunkLookup
from kvoffload_agent.scheduler.lookup.scan import Lookup
from kvoffload_agent.scheduler.lookup.tail import TailLookup, tail_position
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.scheduler.types import MatchResult
from kvoffload_agent.tiers.pool import Client, PartitionPool

# Fields of a policy, as ``RequestCaps.sources`` names them.
LOAD_MAX_TOKENS = "load.maxTokens"
LOAD_MIN_TOKENS = "load.minTokens"
LOAD_TIMEOUT = "load.timeoutSeconds"

_ASK_LATER = MatchResult(tokens=None, load_async=False)


class Matcher:
    """Rules R1 to R8 for the requests of one engine.

    ``wait_for_loads``: whether a chunk that another request loads is waited for, because the
    engine's own prefix cache will have it.
    """

    def __init__(
        self,
        geometry: Geometry,
        pool: PartitionPool,
        client: Client,
        jobs: Jobs,
        budget: SyncBudget,
        *,
        wait_for_loads: bool,
    ) -> None:
        self._geometry = geometry
        self._pool = pool
        self._client = client
        self._jobs = jobs
        self._budget = budget
        self._wait_for_loads = wait_for_loads

    def match(
        self, state: RequestState, *, computed: int, max_new: int | None, now: float
    ) -> MatchResult:
        """Answer one query of a request; after its deadline it waits for no chunk any more."""
        self.give_up(state.handle)
        state.reset_cursor()
        state.local = computed
        state.promised = state.tail = 0
        if state.jobs:
            return _ASK_LATER
        if state.skip_reading or self._timed_out(state, now):
            limit = "" if state.skip_reading else LOAD_TIMEOUT
            return MatchResult(tokens=0, load_async=False, limited_by=limit)
        since = state.waiting_since
        state.pool_request.firm = since is not None and now > since
        lookup = Lookup(self._pool, self._client, state)
        chunks = ChunkLookup(self._geometry, state, lookup, max_new=max_new)
        hit = self._with_tail(state, chunks.run(), lookup, max_new)
        if hit is None:
            return self._wait(state, now)
        limited_by = "" if chunks.missed else self._limited_by(state, max_new)
        if 0 < hit < state.caps.min_load_tokens:
            state.tail = hit = 0
            limited_by = LOAD_MIN_TOKENS
        if not hit:
            return MatchResult(tokens=0, load_async=False, limited_by=limited_by)
        if self._wait_for_loads and self._jobs.loading and self._is_loading(state, computed + hit):
            return self._wait(state, now)
        state.promised = computed + hit
        self._lease(state, state.promised)
        state.sync = self._fits_into_step(state, hit)
        return MatchResult(tokens=hit, load_async=not state.sync, limited_by=limited_by)

    def give_up(self, handle: int) -> None:
        """A request does not use what it was promised."""
        self._client.give_up(handle)
        self._budget.release(handle)

    def _fits_into_step(self, state: RequestState, hit: int) -> bool:
        """Whether a hit can be loaded before a step's forward (R7), if that computes anything."""
        if not self._budget.limit or state.promised >= state.num_tokens:
            return False
        return self._budget.reserve(state.handle, self._geometry.load_bytes(hit))

    def _wait(self, state: RequestState, now: float) -> MatchResult:
        if state.waiting_since is None:
            state.waiting_since = now
        return _ASK_LATER

    def _timed_out(self, state: RequestState, now: float) -> bool:
        limit = state.caps.load_timeout_seconds
        since = state.waiting_since
        return limit is not None and since is not None and now - since >= limit

    def _with_tail(
        self, state: RequestState, complete: int | None, lookup: Lookup, max_new: int | None
    ) -> int | None:
        if complete is None or not self._geometry.partial_tail:
            return complete
        hit = TailLookup(self._geometry, state, lookup, max_new=max_new).run(complete)
        if hit is not None and hit > complete:
            state.tail = state.local + hit
        return hit

    def _limited_by(self, state: RequestState, max_new: int | None) -> str:
        """Name the load cap if it is the lowest bound of all."""
        cap = state.caps.max_load_tokens
        within = state.num_tokens - state.local
        if max_new is not None:
            within = min(within, max_new)
        return LOAD_MAX_TOKENS if cap is not None and cap < within else ""

    def _is_loading(self, state: RequestState, end: int) -> bool:
        return any(
            self._jobs.is_loading(group, hashes) for group, hashes in self._needed(state, end)
        )

    def _needed(self, state: RequestState, end: int) -> list[tuple[int, list[bytes]]]:
        """Return the keys that a load up to ``end`` reads."""
        needed = []
        for group in self._geometry.groups:
            first, last = state.local // group.chunk, ceil_div(end, group.chunk)
            if group.windowed:
                first = max(first, last - group.window_at(end))
            hashes = state.keys[group.number][first:last]
            if state.tail:
                key = state.key_at(tail_position(self._geometry, group, end))
                hashes = [*state.keys[group.number][first : last - 1], *([key] if key else [])]
            needed.append((group.number, hashes))
        return needed

    def _lease(self, state: RequestState, end: int) -> None:
        if not self._pool.shared:
            return
        slots = [
            self._pool.find(self._client, group, hashes)
            for group, hashes in self._needed(state, end)
        ]
        self._client.lease(state.handle, np.concatenate(slots))
