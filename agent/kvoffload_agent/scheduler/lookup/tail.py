"""Hits that end inside a chunk, at a boundary where a Mamba state was stored (rule R8)."""

from __future__ import annotations

from kvoffload_agent.scheduler.geometry import Geometry, Group
from kvoffload_agent.scheduler.lookup.scan import Lookup
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.tiers.secondary import Verdict


class TailLookup:
    """Tries boundaries behind the chunks that hit, the farthest first."""

    def __init__(
        self, geometry: Geometry, state: RequestState, lookup: Lookup, *, max_new: int | None
    ) -> None:
        self._geometry = geometry
        self._state = state
        self._lookup = lookup
        self._max_new = max_new

    def run(self, complete: int) -> int | None:
        """Return the tokens that can be loaded, ``complete`` if no boundary behind hits.

        None = ask again: only where waiting is all that could give a hit.
        """
        geometry, state = self._geometry, self._state
        step = geometry.tokens_per_hash
        base = state.local + complete
        last = self._last(base)
        # From here on the chunk after ``base`` is needed as a whole, of groups other than Mamba.
        bridge = base + geometry.groups[0].tokens_per_block
        bridged = self._bridge(bridge) if last >= bridge else Verdict.MISS
        if bridged is Verdict.MISS:
            last = min(last, bridge - step)
        pending = False
        for boundary in range(last, base, -step):
            verdict = self._all_at(boundary)
            if verdict is Verdict.HIT and boundary >= bridge:
                verdict = bridged
            if verdict is Verdict.HIT:
                return boundary - state.local
            pending |= verdict is not Verdict.MISS
        return None if pending and not complete else complete

    def _last(self, base: int) -> int:
        geometry, state = self._geometry, self._state
        block = geometry.groups[0].tokens_per_block
        reach = 2 * block if geometry.eagle_margin else block
        last = min(state.num_prompt - 1, base + reach - 1)
        hashed = len(state.hashes) * geometry.tokens_per_hash
        last = min(last, hashed - geometry.eagle_margin)
        if self._max_new is not None:
            last = min(last, state.local + self._max_new)
        if state.caps.max_load_tokens is not None:
            last = min(last, state.local + state.caps.max_load_tokens)
        return last - last % geometry.tokens_per_hash

    def _bridge(self, boundary: int) -> Verdict:
        answer = Verdict.HIT
        for group in self._geometry.groups:
            if group.align:
                continue
            verdict = self._at(group, boundary)
            if verdict is Verdict.MISS:
                return verdict
            if verdict is not Verdict.HIT:
                answer = Verdict.PENDING
        return answer

    def _all_at(self, boundary: int) -> Verdict:
        answer = Verdict.HIT
        for group in self._geometry.groups:
            verdict = self._at(group, tail_position(self._geometry, group, boundary))
            if verdict is Verdict.MISS:
                return verdict
            if verdict is not Verdict.HIT:
                answer = Verdict.PENDING
        return answer

    def _at(self, group: Group, position: int) -> Verdict:
        key = self._state.key_at(position)
        return Verdict.MISS if key is None else self._lookup.ask(group, key, position)


def tail_position(geometry: Geometry, group: Group, boundary: int) -> int:
    """Return where a group's key for ``boundary`` ends: eagle attention needs a proof beyond."""
    return boundary + geometry.eagle_margin if group.eagle and not group.align else boundary
