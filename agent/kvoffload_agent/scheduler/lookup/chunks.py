"""The deepest chunk boundary that every group can load up to (rules R2 to R5)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvoffload_agent.scheduler.geometry import Geometry, Group, ceil_div
from kvoffload_agent.scheduler.lookup.scan import Lookup
from kvoffload_agent.scheduler.request import RequestState


@dataclass(slots=True)
class _Pass:
    """State over the visits. ``end``: the ceiling, absolute. ``hit``: at the last visit."""

    end: int
    hit: int = 0
    deferred: bool = False
    verified: set[int] = field(default_factory=set)
    rerun: list[Group] | None = None


class ChunkLookup:
    """Visits the groups until their answers agree."""

    def __init__(
        self, geometry: Geometry, state: RequestState, lookup: Lookup, *, max_new: int | None
    ) -> None:
        self._geometry = geometry
        self._state = state
        self._lookup = lookup
        self._max_new = max_new
        self.missed = False
        """Whether a key that was not there ended the hit, rather than a bound."""

    def ceiling(self) -> int:
        """Return the boundary that no hit can pass, before any group is visited (R2)."""
        state, geometry = self._state, self._geometry
        end = state.num_tokens
        if self._max_new is not None:
            end = min(end, state.local + self._max_new)
        cap = state.caps.max_load_tokens
        if cap is not None:
            end = min(end, state.local + cap)
        if geometry.windowed:
            # The last token has to be computed again: its window must be there.
            end -= 1
            if geometry.mamba_chunk:
                end -= end % geometry.mamba_chunk
        return end

    def run(self) -> int | None:
        """Return how many tokens beyond the local ones can be loaded; None = ask again."""
        state = _Pass(end=self.ceiling())
        order: list[Group] | None = self._geometry.lookup_order
        while order is not None:
            state.rerun = None
            for group in order:
                before = state.hit
                if not self._visit(group, state):
                    return 0
                if state.hit < before:
                    self._shrunk(group, state)
            order = state.rerun
        return None if state.deferred else state.hit

    def _shrunk(self, group: Group, state: _Pass) -> None:
        """A group hit less than the one before: earlier answers may not hold any more."""
        if not group.eagle:
            state.verified.clear()
        if state.deferred:
            state.deferred = False
            state.rerun = self._geometry.lookup_order
        elif group in self._geometry.windowed[1:] and state.rerun is None:
            state.rerun = self._geometry.windowed

    def _visit(self, group: Group, state: _Pass) -> bool:
        """Visit one group (R4); return False if the whole request hits nothing."""
        chunk, local = group.chunk, self._state.local
        keys = self._state.keys[group.number]
        state.end = min(state.end, len(keys) * chunk)
        # A recurrent state is there at ends of chunks only, and holds every token before: that of a
        # later end is no state for this one. Finer chunks of other groups may have ended inside.
        if group.align or self._state.caps.max_load_tokens is not None:
            state.end -= state.end % chunk
        if state.end - local < chunk:
            return False
        eagle = group.eagle and group.number not in state.verified
        query = min(state.end + chunk, len(keys) * chunk) if eagle else state.end
        first = local // chunk
        last = min(ceil_div(query, chunk), len(keys))
        found = self._scan(group, first, last, state.end, eagle=eagle)
        if found is None:
            state.deferred = True
        elif found == 0:
            self.missed = True
            return False
        else:
            if eagle:
                found -= 1
                state.verified.add(group.number)
            reached = chunk * (first + found)
            self.missed |= reached < state.end
            state.end = min(state.end, reached)
        state.hit = state.end - local
        return state.hit >= chunk

    def _scan(self, group: Group, first: int, last: int, end: int, *, eagle: bool) -> int | None:
        keys = self._state.keys[group.number]
        asked = keys[first:last] if first or last < len(keys) else keys
        if not group.windowed:
            return self._lookup.prefix(group, asked, first)
        candidate = min(end, (last - eagle) * group.chunk)
        return self._lookup.window(
            group,
            asked,
            first,
            needed=group.window + eagle,
            initial=group.window_at(candidate) + eagle,
        )
