"""Scans over the keys of one group: a prefix for full attention, a window for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvoffload_agent.scheduler.geometry import Group
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.secondary import Verdict
from kvoffload_agent.tiers.slots import READY

# A miss near the start must not cost a look at the whole prompt; each batch costs a few calls.
_FIRST_BATCH: Final = 16
_GALLOP: Final = 8


class Lookup:
    """One request's questions to the pool."""

    def __init__(self, pool: PartitionPool, client: Client, state: RequestState) -> None:
        self._pool = pool
        self._client = client
        self._state = state
        self._tiered = bool(pool.below.tiers)

    def ask(self, group: Group, key: bytes, position: int) -> Verdict:
        """Return what is known of one key; a promotion may begin."""
        slot = int(self._pool.find(self._client, group.number, [key])[0])
        if slot >= 0:
            ready = self._pool.host.table.refs[slot] >= READY
            return Verdict.HIT if ready else Verdict.PENDING
        if not self._tiered:
            return Verdict.MISS
        return self._pool.below_host(
            self._client, self._state.pool_request, group.number, key, position
        )

    def prefix(self, group: Group, keys: Sequence[bytes], first: int) -> int | None:
        """Return how many keys from the first on are hits; None = ask again.

        The scan goes on behind keys that are not ready, so that their promotions start.
        ``first``: number of the first key's chunk.
        """
        done = 0
        size = _FIRST_BATCH
        deferred = False
        refs = self._pool.host.table.refs
        while done < len(keys):
            batch = keys[done : done + size]
            slots = self._pool.find(self._client, group.number, batch)
            absent = slots < 0
            hits = int(absent.argmax()) if absent.any() else len(batch)
            if hits and (refs[slots[:hits]] < READY).any():
                deferred = True
            done += hits
            if hits == len(batch):
                size *= _GALLOP
                continue
            verdict = Verdict.MISS
            if self._tiered:
                verdict = self.ask(group, keys[done], (first + done + 1) * group.chunk)
            if verdict is Verdict.MISS:
                break
            deferred = True
            done += 1
        return None if deferred else done

    def window(
        self, group: Group, keys: Sequence[bytes], first: int, *, needed: int, initial: int
    ) -> int | None:
        """Return the number of keys up to the end of the rightmost full window of hits.

        Args:
            group: Windowed.
            keys: To scan from the right.
            first: Number of the first key's chunk.
            needed: Keys in a row.
            initial: Keys in a row at the very end.

        Returns:
            0 if nothing is found; a shorter run if it reaches the first key; None = ask again.
        """
        streak, required = 0, initial
        deferred = pending = False
        for at in range(len(keys) - 1, -1, -1):
            verdict = self.ask(group, keys[at], (first + at + 1) * group.chunk)
            if verdict is Verdict.HIT or verdict is Verdict.PENDING:
                streak += 1
                pending |= verdict is Verdict.PENDING
                if streak == required:
                    return None if deferred or pending else at + required
            else:
                streak, required, pending = 0, needed, False
                deferred |= verdict is Verdict.RETRY
        return None if deferred or pending else streak
