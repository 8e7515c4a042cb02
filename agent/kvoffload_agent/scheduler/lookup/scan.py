"""Scans over the keys of one group: a prefix for full attention, a window for the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from kvoffload_agent.scheduler.geometry import Group
from kvoffload_agent.scheduler.request import RequestState
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.secondary import Verdict
from kvoffload_agent.tiers.slots import READY, Slots

# A miss near the start must not cost a look at the whole prompt; each batch costs a few calls.
_FIRST_BATCH: Final = 64
_GALLOP: Final = 8


class Lookup:
    """One request's questions to the pool."""

    def __init__(self, pool: PartitionPool, client: Client, state: RequestState) -> None:
        self._pool = pool
        self._client = client
        self._state = state
        self._table = pool.host.table
        self._tiered = bool(pool.below.tiers)
        self._found: list[Slots] = []

    def ask(self, group: Group, key: bytes, position: int) -> Verdict:
        """Return what is known of one key; a promotion may begin."""
        slot = int(self._pool.find(self._client, group.number, [key])[0])
        if slot >= 0:
            self._keep(np.array([slot]))
            return Verdict.HIT if self._table.refs[slot] >= READY else Verdict.PENDING
        return self._ask_below(group, key, position)

    def _ask_below(self, group: Group, key: bytes, position: int, *seen: Slots) -> Verdict:
        """Ask the tiers below. ``seen``: slots of this scan, besides those that are kept."""
        if not self._tiered:
            return Verdict.MISS
        run = KeyRun(group=group.number, hashes=[key], positions=np.array([position]))
        return self._pool.below_host(
            self._client, self._state.pool_request, run, found=[*self._found, *seen]
        )

    def _keep(self, slots: Slots) -> None:
        """Remember what was found: this query's promotions shall not evict it."""
        if self._tiered and len(slots):
            self._found.append(slots)

    def prefix(self, group: Group, keys: Sequence[bytes], first: int) -> int | None:
        """Return how many keys from the first on are hits; None = ask again.

        The scan goes on behind keys that are not ready, so that their promotions start.
        ``first``: number of the first key's chunk.
        """
        done, size = 0, _FIRST_BATCH
        deferred = False
        while done < len(keys):
            batch = keys[done : done + size] if done or len(keys) > size else keys
            slots = self._pool.find(self._client, group.number, batch)
            version, base = self._table.version, done
            done, size = base + len(slots), size * _GALLOP
            if not np.count_nonzero(self._table.refs.take(slots) < READY):
                self._keep(slots)
                continue
            absent = (slots < 0).nonzero()[0]
            hits = slots[: absent[0]] if len(absent) else slots
            if np.count_nonzero(self._table.refs.take(hits) < READY):
                deferred = True
            for at in absent.tolist():
                position = (first + base + at + 1) * group.chunk
                verdict = self._ask_below(group, keys[base + at], position, slots[:at])
                if verdict is Verdict.MISS:
                    self._keep(slots[:at])
                    return None if deferred else base + at
                deferred = True
                if self._table.version != version:  # a promotion may have evicted what was found
                    done, size = base + at + 1, _FIRST_BATCH
                    break
            self._keep(slots[: done - base])
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
        verdicts = self._from_right(group, keys, first, size=max(initial, _FIRST_BATCH))
        for behind, verdict in enumerate(verdicts, 1):
            if verdict in (Verdict.HIT, Verdict.PENDING):
                streak += 1
                pending |= verdict == Verdict.PENDING
                if streak == required:
                    return None if deferred or pending else len(keys) - behind + required
            else:
                streak, required, pending = 0, needed, False
                deferred |= verdict == Verdict.RETRY
        return None if deferred or pending else streak

    def _from_right(
        self, group: Group, keys: Sequence[bytes], first: int, *, size: int
    ) -> Iterator[int]:
        """Yield the verdict on each key, from the last one on."""
        end, batch = len(keys), size
        while end:
            low = max(end - batch, 0)
            batch *= _GALLOP
            slots = self._pool.find(self._client, group.number, keys[low:end])
            version = self._table.version
            known = np.where(self._table.refs[slots] >= READY, Verdict.HIT, Verdict.PENDING)
            known[slots < 0] = Verdict.MISS
            try:
                for verdict in known[::-1].tolist():
                    end -= 1
                    if verdict != Verdict.MISS:
                        yield verdict
                        continue
                    position = (first + end + 1) * group.chunk
                    yield self._ask_below(group, keys[end], position, slots[end - low + 1 :])
                    if self._table.version != version:  # a promotion may have evicted a hit
                        batch = size
                        break
            finally:  # also where the caller has seen enough
                self._keep(slots[end - low :])
