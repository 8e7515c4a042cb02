"""Host memory and the tiers below it: promotions up, cascades down (``scheduler.md`` 6.6-6.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_agent.tiers.backpressure import BackPressure, marks_of
from kvoffload_agent.tiers.host import Grant, HostTier
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.secondary import Finished, SecondaryTier, Verdict
from kvoffload_agent.tiers.slots import READY, Slots

Key = tuple[int, bytes]

# One scan begins all the promotions that it needs; more rounds come from chunks that others evict,
# from transfers that fail, and from groups that have to agree on another end.
MAX_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    tier: int
    request: PoolRequest
    slots: Slots
    keys: list[Key]
    load: bool
    began: float


class Below:
    """The secondary tiers of a pool and the transfers between them and host memory.

    ``now``: monotonic seconds, as whoever calls last said.
    ``pressure``: of each tier, if it is measured whether it keeps up.
    ``dropped``: chunks that were not handed to each tier because it did not.
    """

    def __init__(
        self, host: HostTier, tiers: Sequence[SecondaryTier], *, slot_bytes: int = 0
    ) -> None:
        self.tiers = list(tiers)
        self.now = 0.0
        self.pressure = [
            BackPressure(marks_of(tier.locality)) if slot_bytes else None for tier in tiers
        ]
        self.dropped = [0] * len(tiers)
        self._slot_bytes = slot_bytes
        self.all = tuple(range(len(self.tiers)))
        self.request_level = any(tier.request_level for tier in self.tiers)
        self._host = host
        self._jobs: dict[int, _Job] = {}
        self._next_job = 0
        self._promotions: dict[tuple[int, PoolRequest], list[tuple[Key, int]]] = {}
        self._parked: dict[PoolRequest, None] = {}

    def allowed(self, accepts: Callable[[str | None, str | None], bool]) -> tuple[int, ...]:
        """Return the numbers of the tiers whose (medium, locality) is accepted."""
        return tuple(
            number for number, tier in enumerate(self.tiers) if accepts(tier.medium, tier.locality)
        )

    @property
    def busy(self) -> bool:
        """Whether a transfer runs or is parked."""
        return bool(self._jobs or self._parked or self._promotions)

    # --- up ----------------------------------------------------------------------------------

    def lookup(
        self, request: PoolRequest, run: KeyRun, *, blocked: Slots, found: Sequence[Slots] = ()
    ) -> Verdict:
        """Ask the allowed tiers in order for the one key of ``run``; a hit is promoted.

        In vLLM a request whose prompt does not fit into host memory waits for ever: promoting its
        tail evicts its head, which is then promoted again (recorded, in cases in which no time
        passes). So a ``firm`` request evicts nothing of what the same query ``found``, and waits
        for its own promotions before it takes no for an answer. As others may evict what it found,
        too, it gets ``MAX_ROUNDS`` of promotions; what is not there then is missing.
        """
        key = (run.group, run.hashes[0])
        answer = Verdict.MISS
        for number in request.load_tiers:
            verdict = self.tiers[number].lookup(request.number, key)
            if verdict is Verdict.HIT:
                grant = None
                if request.firm:
                    blocked = np.concatenate([blocked, *found])
                if not request.firm or request.rounds < MAX_ROUNDS:
                    grant = self._host.offer(request.scratch, [run], blocked=blocked)
                if grant is None:
                    waits = request.firm and request.promoting
                    return Verdict.RETRY if waits else Verdict.MISS
                request.promoting += 1
                slot = int(grant.slots[0][0])
                self._promotions.setdefault((number, request), []).append((key, slot))
                request.origins[key] = number
                return Verdict.PENDING
            if verdict is Verdict.RETRY:
                answer = verdict
        return answer

    def end_step(self) -> None:
        """A step is built: begin promotions found during it, and look at what is parked."""
        self._submit_promotions()
        for request in list(self._parked):
            self._retry(request)

    def _submit_promotions(self) -> None:
        """Begin promotions, one job for each (tier, request)."""
        promotions, self._promotions = self._promotions, {}
        for request in {request: None for _, request in promotions}:
            request.rounds += request.firm
        for (number, request), items in promotions.items():
            keys = [key for key, _ in items]
            slots = np.array([slot for _, slot in items], dtype=np.int64)
            job = self._job(number, request, keys, slots, load=True)
            self.tiers[number].submit_load(job, request.number, keys, slots)

    # --- down --------------------------------------------------------------------------------

    def cascade(self, request: PoolRequest, slots: Slots) -> None:
        """Chunks of a request were written: every tier gets them."""
        if not len(slots):
            return
        keys = self._host.keys(slots)
        for number in request.store_tiers:
            self._store(number, request, keys, slots)

    def offered(self, request: PoolRequest, grant: Grant) -> None:
        """An offer was accepted: request-level tiers get what was there before, too."""
        levels = [number for number in request.store_tiers if self.tiers[number].request_level]
        if not levels:
            return
        there = np.concatenate([slots[slots >= 0] for slots in grant.present])
        if not len(there):
            return
        refs = self._host.table.refs[there]
        ready, pending = there[refs >= READY], there[refs < READY]
        for number in levels:
            if len(ready):
                self._store(number, request, self._host.keys(ready), ready)
            if len(pending):
                request.parked.setdefault(number, []).extend(self._host.keys(pending))
                self._parked[request] = None

    def finish(self, request: PoolRequest) -> None:
        """A request ended; tiers hear of it after its last write."""
        request.finished = True
        self.settle(request)

    def settle(self, request: PoolRequest) -> None:
        """Tell tiers that a request ended, once nothing of it is written or parked any more."""
        if request.finished and not request.writing and not request.parked:
            for tier in self.tiers:
                tier.finish(request.number)

    # --- finished transfers --------------------------------------------------------------------

    def absorb(self) -> None:
        """Take in what tiers finished."""
        self._take_in(measured=True)

    def _take_in(self, *, measured: bool) -> None:
        for tier in self.tiers:
            for finished in tier.poll():
                job = self._jobs.pop(finished.job, None)
                if job is None:
                    continue
                if measured:
                    self._measure(job, finished)
                self._ended(job, finished)

    def _ended(self, job: _Job, finished: Finished) -> None:
        if not job.load:
            self._host.unpin(job.slots)
            return
        job.request.promoting -= len(job.keys)
        if finished.success:
            self._host.written(job.slots)
            return
        arrived = finished.arrived or frozenset()
        good = np.array([key in arrived for key in job.keys], dtype=np.bool_)
        if good.any():
            self._host.written(job.slots[good])
        if not good.all():
            self._host.failed(job.slots[~good])
            for key in job.keys:
                if key not in arrived:
                    job.request.origins.pop(key, None)

    def _measure(self, job: _Job, finished: Finished) -> None:
        """Take a store as a sign of whether its tier keeps up (6.10)."""
        pressure = self.pressure[job.tier]
        if pressure is None or job.load:
            return
        if finished.success:
            size, seconds = finished.size, finished.seconds
            pressure.completed(
                size=len(job.slots) * self._slot_bytes if size is None else size,
                seconds=self.now - job.began if seconds is None else seconds,
                now=self.now,
            )
        elif self.tiers[job.tier].medium == "storage":
            pressure.failed(now=self.now)

    def _retry(self, request: PoolRequest) -> None:
        for number, keys in list(request.parked.items()):
            found = [int(self._host.index.find(group, [key])[0]) for group, key in keys]
            refs = self._host.table.refs
            ready = [
                (key, slot)
                for key, slot in zip(keys, found, strict=True)
                if slot >= 0 and refs[slot] >= READY
            ]
            waiting = [
                key
                for key, slot in zip(keys, found, strict=True)
                if slot >= 0 and refs[slot] < READY
            ]
            if ready:
                slots = np.array([slot for _, slot in ready], dtype=np.int64)
                self._store(number, request, [key for key, _ in ready], slots)
            if waiting:
                request.parked[number] = waiting
            else:
                del request.parked[number]
        if not request.parked:
            del self._parked[request]
            self.settle(request)

    def drain(self) -> Slots:
        """End what can be ended at once; the rest keeps its slots until it is reported.

        Returns the slots of promotions that have not begun, for their caller to free.
        """
        for tier in self.tiers:
            tier.drain()
        # What was cut short says nothing of a tier's speed.
        self._take_in(measured=False)
        waiting = [slot for items in self._promotions.values() for _, slot in items]
        return np.array(waiting, dtype=np.int64)

    def reset(self) -> None:
        """Every chunk is gone."""
        for (_, request), items in self._promotions.items():
            request.origins.clear()
            request.promoting -= len(items)
        self._promotions = {}
        for request in self._parked:
            request.parked = {}
            self.settle(request)
        self._parked = {}

    def _store(self, number: int, request: PoolRequest, keys: list[Key], slots: Slots) -> None:
        pressure = self.pressure[number]
        if pressure is not None and pressure.drops(self.now):
            self.dropped[number] += len(slots)
            return
        self._host.pin(slots)
        job = self._job(number, request, keys, slots, load=False)
        self.tiers[number].submit_store(job, request.number, keys, slots)

    def _job(
        self, number: int, request: PoolRequest, keys: list[Key], slots: Slots, *, load: bool
    ) -> int:
        job = self._next_job
        self._next_job += 1
        self._jobs[job] = _Job(
            tier=number, request=request, slots=slots, keys=keys, load=load, began=self.now
        )
        return job
