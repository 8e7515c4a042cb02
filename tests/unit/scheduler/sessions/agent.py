"""One life of an agent: a pool, what its slots hold, and tiers whose transfers a test ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots

# (prompt, group, number of the block): the KV of one full block.
Content = tuple[int, int, int]
# By (slot, index of the block inside its chunk).
Memory = dict[tuple[int, int], Content]
Mood = Literal["willing", "slow", "broken"]


@dataclass(kw_only=True)
class Transfer:
    """A store or a load of a tier that has not ended."""

    load: bool
    keys: Sequence[Key]
    slots: list[int]


class FakeTier:
    """A tier that keeps what it is given; its transfers end when and how a test says.

    A real disk neither hangs nor fails on demand. ``contents`` outlives the agent. ``over``:
    requests that it was told the end of.
    """

    medium = "storage"

    def __init__(self, *, locality: str, request_level: bool, per_chunk: int) -> None:
        self.locality = locality
        self.request_level = request_level
        self.contents: dict[Key, list[Content | None]] = {}
        self.mood: Mood = "willing"
        self._per_chunk = per_chunk
        self.start({})

    def start(self, memory: Memory) -> None:
        """A new life of the agent: no transfer goes on, and nobody was heard of."""
        self.pending: dict[int, Transfer] = {}
        self.unreported: dict[int, Transfer] = {}
        self._memory = memory
        self._done: list[Finished] = []
        self.over: set[int] = set()

    def lookup(self, request: int, key: Key) -> Verdict:
        assert request not in self.over, "a lookup after the request's end"
        if self.mood == "slow":
            return Verdict.RETRY
        return Verdict.HIT if key in self.contents else Verdict.MISS

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        assert request not in self.over, "a store after the request's end"
        self._submit(job, load=False, keys=keys, slots=slots)

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        self._submit(job, load=True, keys=keys, slots=slots)

    def _submit(self, job: int, *, load: bool, keys: Sequence[Key], slots: Slots) -> None:
        assert len(keys) == len(slots) > 0
        self.pending[job] = Transfer(load=load, keys=list(keys), slots=slots.tolist())

    def end(self, job: int, *, good: float = math.inf) -> None:
        """End a transfer, of which the first ``good`` chunks arrive; a broken tier moves none."""
        transfer = self.unreported[job] = self.pending.pop(job)
        if self.mood == "broken":
            good = 0
        moved = list(zip(transfer.keys, transfer.slots, strict=True))[: int(min(good, 1e9))]
        arrived = frozenset(key for key, _ in moved)
        whole = len(moved) == len(transfer.keys)
        for key, slot in moved:
            if transfer.load:
                self._fill(slot, self.contents.get(key, []))
            elif whole:
                places = range(self._per_chunk)
                self.contents[key] = [self._memory.get((slot, at)) for at in places]
        if transfer.load:
            for key in set(transfer.keys) - arrived:
                self.contents.pop(key, None)  # a verdict that proved wrong is not given again
        self._done.append(Finished(job=job, success=whole, arrived=None if whole else arrived))

    def _fill(self, slot: int, row: Sequence[Content | None]) -> None:
        for at, content in enumerate(row):
            self._memory.pop((slot, at), None)
            if content is not None:
                self._memory[slot, at] = content

    def poll(self) -> Sequence[Finished]:
        done, self._done = self._done, []
        for finished in done:
            del self.unreported[finished.job]
        return done

    def drain(self) -> None:
        """Every second transfer had not begun."""
        for job in list(self.pending)[::2]:
            self.end(job, good=0)

    def finish(self, request: int) -> None:
        assert request not in self.over, "a request ended twice"
        self.over.add(request)


class Agent:
    """``now``: seconds, one a step. ``boot``: of this life."""

    def __init__(
        self, *, boot: int, host: HostConfig, slots: int, tiers: Sequence[FakeTier]
    ) -> None:
        self.boot = boot
        self.now = 0.0
        self.tiers = tiers
        self.memory: Memory = {}
        for tier in tiers:
            tier.start(self.memory)
        self.pool = PartitionPool(host, tiers=tiers)
        self.pool.add_slots(slots)
        self.num_sessions = 0
        self.losses = 0
        """How often chunks left for another reason than to make room."""
