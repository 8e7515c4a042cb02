"""A partition's chunks in host memory and the tiers below, shared by the engines of a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kvoffload_agent.tiers.cascade import Below
from kvoffload_agent.tiers.host import Event, Grant, HostConfig, HostTier
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.secondary import SecondaryTier, Verdict, check_declared
from kvoffload_agent.tiers.slots import READY, WRITING, Slots

Key = tuple[int, bytes]

# The engine that got an answer in this step may allocate in the next one.
_LEASE_STEPS: Final = 2

_NOTHING: Final[Slots] = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Client:
    """One engine at the pool. ``leases``: slots that others may not evict, by request.

    ``returned``: leases that ended.

    ``fenced``: a reset waits for copies to end; until then nothing is promoted for it.
    ``absorbed``: whether finished transfers were taken in since its last step.
    """

    leases: dict[int, Slots] = field(default_factory=dict)
    returned: int = 0
    fenced: bool = False
    absorbed: bool = False
    _ages: dict[int, int] = field(default_factory=dict)

    def lease(self, request: int, slots: Slots) -> None:
        """Keep slots from other engines until the end of the engine's next step but one."""
        self.leases[request] = slots
        self._ages[request] = 0

    def give_up(self, request: int) -> None:
        """A request needs its lease no longer."""
        if self.leases.pop(request, None) is not None:
            self.returned += 1

    def age_leases(self) -> None:
        """A step is built."""
        for request in list(self.leases):
            self._ages[request] += 1
            if self._ages[request] >= _LEASE_STEPS:
                self.give_up(request)


class PartitionPool:
    """Host memory and secondary tiers as engines use them. Calls belong to one thread.

    Between two calls nothing moves: a key that a lookup found can be pinned by the next call.

    Args:
        config: Of host memory.
        tiers: Below it, in the order in which they are asked.
        allow_undeclared: Take tiers that do not say what they are, and let them pass any filter,
            as vLLM does. For replaying what vLLM decided, nothing else.
        slot_bytes: Bytes of a chunk on all ranks, by which it is measured whether a tier keeps up;
            stores to one that does not are dropped (6.10). 0: nothing is measured or dropped.

    Raises:
        UndeclaredTierError: a tier's medium or locality is none that a filter can name.
        ValueError: ``slot_bytes`` is negative.
    """

    def __init__(
        self,
        config: HostConfig | None = None,
        *,
        tiers: Sequence[SecondaryTier] = (),
        allow_undeclared: bool = False,
        slot_bytes: int = 0,
    ) -> None:
        if not allow_undeclared:
            check_declared(tiers)
        if slot_bytes < 0:
            raise ValueError(f"a chunk can't have {slot_bytes} bytes")
        self.host = HostTier(config or HostConfig())
        self.below = Below(self.host, tiers, slot_bytes=slot_bytes)
        self._clients: set[Client] = set()
        self._next_request = 0
        self._evicted_told = 0

    # --- capacity ----------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Slots that hold nothing."""
        return self.host.table.num_free

    def add_slots(self, count: int) -> None:
        """Append ``count`` slots, numbered on from the last one."""
        self.host.add_slots(count)

    def retire_slots(self, low: int, high: int) -> int:
        """Empty slots ``[low, high)`` for good; return how many are still read or written."""
        self.below.absorb()
        return self.host.retire_slots(low, high)

    def heats(self, spans: Sequence[tuple[int, int]]) -> list[float]:
        """Return the mean recency of each span ``[low, high)`` of slots, which must not be empty.

        1 is the time of the oldest chunk's last use, on a clock that requests move; an empty slot
        counts 0.
        """
        return self.host.heats(spans)

    # --- who uses it -------------------------------------------------------------------------

    def join(self) -> Client:
        """Let an engine in."""
        client = Client()
        self._clients.add(client)
        return client

    def leave(self, client: Client) -> None:
        """Forget an engine and its leases; what it pinned has to be returned by then."""
        self._clients.discard(client)
        # Promotions that its last step would have begun hold slots until they end.
        self.below.end_step()

    @property
    def shared(self) -> bool:
        """Whether several engines use it."""
        return len(self._clients) > 1

    def open(self) -> PoolRequest:
        """Begin a request that may use every tier."""
        everything = self.below.all
        request = PoolRequest(
            number=self._next_request, load_tiers=everything, store_tiers=everything
        )
        self._next_request += 1
        return request

    def finish(self, request: PoolRequest) -> None:
        """End a request, after its last offer; its copies may still be running."""
        self.host.policy.finish(request.scratch)
        self.below.finish(request)

    # --- loading -----------------------------------------------------------------------------

    def find(self, client: Client, group: int, hashes: Sequence[bytes]) -> Slots:
        """Return slots in host memory, -1 where there is none."""
        if self.below.tiers and not client.absorbed:
            self.absorb(client)
        return self.host.index.find(group, hashes)

    def below_host(
        self,
        client: Client,
        request: PoolRequest,
        run: KeyRun,
        *,
        found: Sequence[Slots] = (),
    ) -> Verdict:
        """Ask the secondary tiers for the one key of ``run``, which host memory has not.

        A hit is promoted: ``PENDING`` if a slot could be had for it, else ``MISS``. ``found``: what
        the scan has seen in host memory before.
        """
        if client.fenced or not request.load_tiers:
            return Verdict.MISS
        blocked = self._leased_by_others(client)
        return self.below.lookup(request, run, blocked=blocked, found=found)

    def pin(self, request: PoolRequest, runs: Sequence[KeyRun], slots: Sequence[Slots]) -> None:
        """Keep chunks while they are loaded.

        Raises:
            NotReadyError: a chunk is not there, or not readable; nothing is pinned then.
        """
        for run, at in zip(runs, slots, strict=True):
            if len(at) and (at.min() < 0 or self.host.table.refs[at].min() < READY):
                raise NotReadyError(f"group {run.group}: a chunk to load is not ready")
        for run, at in zip(runs, slots, strict=True):
            self.host.observe(request.scratch, run, at)
            self.host.pin(at)
        request.firm, request.rounds = False, 0

    def unpin(self, slots: Slots, *, success: bool) -> None:
        """A load ended; if its copy failed, nobody shall read these chunks again."""
        self.host.unpin(slots)
        if not success:
            self.host.discard(slots)

    # --- storing -----------------------------------------------------------------------------

    def offer(self, client: Client, request: PoolRequest, runs: list[KeyRun]) -> Grant | None:
        """Offer keys of a request for storing; None = no room, and nothing changed."""
        self.absorb(client)
        grant = self.host.offer(request.scratch, runs, blocked=self._leased_by_others(client))
        if grant is None:
            return None
        if len(grant.written()):
            request.writing += 1
        self.below.offered(request, grant)
        return grant

    def state(self, client: Client) -> object:
        """Return a value that is equal later if an offer refused now would be refused again.

        Never equal with a store threshold: every offer counts.
        """
        self.absorb(client)
        if self.host.tracker is not None:
            return object()
        returned = sum(other.returned for other in self._clients)
        return self.host.table.version, len(self._clients), returned

    def stored(self, request: PoolRequest, slots: Slots, *, success: bool) -> None:
        """The copies of one accepted offer ended."""
        request.writing -= 1
        if success:
            self.host.written(slots)
            kept = slots[self.host.table.keyed[slots]]  # not those that a reset forgot meanwhile
            self.below.cascade(request, kept)
        else:
            self.host.failed(slots)
        self.below.settle(request)

    # --- time --------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """It is ``now``, in monotonic seconds; an earlier time than before is ignored."""
        self.below.now = max(self.below.now, now)

    def absorb(self, client: Client) -> None:
        """Take in the transfers that tiers have finished."""
        client.absorbed = True
        self.below.absorb()

    def end_step(self, client: Client) -> None:
        """An engine's step is built: promotions found during it begin."""
        if not client.absorbed:
            self.absorb(client)
        client.absorbed = False
        self.below.end_step()

    def reset(self, client: Client, *, own: Slots) -> None:
        """Forget every chunk.

        ``own``: slots that the client's copies read or write, once per pin; these copies are to be
        flushed by the engine before anything else touches the slots. Those that other engines or
        tiers use are freed when they have done.
        """
        own = np.concatenate([own, self.below.drain()])
        refs = self.host.table.refs.copy()
        np.subtract.at(refs, own[refs[own] > READY], 1)
        refs[own[refs[own] == WRITING]] = READY
        used = (refs > READY) | (refs == WRITING)
        self.host.reset(held=np.flatnonzero(used[: self.host.table.count]))
        self.below.reset()
        for request in list(client.leases):
            client.give_up(request)

    def settle(self) -> bool:
        """Take in what tiers finished; return whether one still reads or writes slots."""
        self.below.absorb()
        return self.below.busy

    @property
    def busy(self) -> bool:
        """Whether a tier works, or has work parked, for any request."""
        return self.below.busy

    def take_evicted(self) -> int:
        """Return how many chunks left for others since the last call."""
        told, self._evicted_told = self._evicted_told, self.host.evicted
        return self._evicted_told - told

    def take_events(self) -> list[Event]:
        """Return what became readable and what left since the last call."""
        return self.host.take_events()

    def _leased_by_others(self, client: Client) -> Slots:
        leases = [
            slots
            for other in self._clients
            if other is not client
            for slots in other.leases.values()
        ]
        return np.concatenate(leases) if leases else _NOTHING


class NotReadyError(Exception):
    """An engine asks to load what a lookup did not promise, or promised too long ago."""
