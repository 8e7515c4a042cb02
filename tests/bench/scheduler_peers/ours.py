"""This project's scheduler, in process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from tests.bench.scheduler_peers.workload import TOKENS_PER_BLOCK, Hashes, Shape

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import (
    GroupConfig,
    GroupKind,
    RequestCaps,
    ScheduledRequest,
    SchedulerConfig,
    StepInput,
)
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.slots import Slots

NOW = 0.0
CAPS = RequestCaps(prompt_only=False)


@dataclass(slots=True)
class _Offer:
    request: PoolRequest
    runs: list[KeyRun]
    slots: Slots | None = None


@dataclass(slots=True)
class _Match:
    handle: int
    keys: Hashes


@dataclass(slots=True)
class _Store:
    handle: int
    step: StepInput
    jobs: list[int]


class Ours:
    """A scheduler and a pool of ``capacity`` chunks."""

    def __init__(self, shape: Shape, *, capacity: int) -> None:
        groups = [GroupConfig(kind=GroupKind.FULL, tokens_per_block=TOKENS_PER_BLOCK)]
        if shape.window:
            groups.append(
                GroupConfig(
                    kind=GroupKind.SLIDING_WINDOW,
                    tokens_per_block=TOKENS_PER_BLOCK,
                    window=shape.window,
                )
            )
        policy: Any = shape.policy
        self.pool = PartitionPool(HostConfig(eviction_policy=policy))
        self.pool.add_slots(capacity)
        config = SchedulerConfig(groups=groups, tokens_per_hash=TOKENS_PER_BLOCK)
        self.engine = EngineScheduler(config, self.pool)
        self._groups = len(groups)
        self._handles = count(1)

    def fill(self, group: int, keys: Hashes) -> None:
        offer = self._offer(group, keys)
        self.offer(offer)
        self.offered(offer)

    def prepare_match(self, keys: Hashes) -> _Match:
        return _Match(next(self._handles), keys)

    def match(self, prepared: _Match) -> int | None:
        self._announce(prepared.handle, prepared.keys)
        return self.engine.match(prepared.handle, computed=0, max_new_tokens=None, now=NOW).tokens

    def forget(self, prepared: _Match) -> None:
        self._finish([prepared.handle])

    def prepare_store(self, keys: Hashes) -> _Store:
        handle = next(self._handles)
        self._announce(handle, keys)
        assert self.engine.match(handle, computed=0, max_new_tokens=None, now=NOW).tokens == 0
        entry = ScheduledRequest(
            handle=handle,
            computed=0,
            scheduled=len(keys) * TOKENS_PER_BLOCK,
            blocks=[np.arange(1, len(keys) + 1, dtype=np.int64)] * self._groups,
            new=True,
        )
        return _Store(handle, StepInput(requests=[entry]), [])

    def store(self, prepared: _Store) -> int:
        result = self.engine.step(prepared.step, now=NOW)
        prepared.jobs = [plan.job for plan in result.stores]
        return sum(len(plan.blocks) for plan in result.stores)

    def stored(self, prepared: _Store) -> None:
        self.engine.complete(done=prepared.jobs, failed=(), now=NOW)
        self._finish([prepared.handle])

    def prepare_offer(self, keys: Hashes) -> _Offer:
        return self._offer(0, keys)

    def offer(self, prepared: _Offer) -> int:
        grant = self.pool.offer(self.engine.client, prepared.request, prepared.runs)
        assert grant is not None
        prepared.slots = grant.slots[0]
        return len(prepared.slots)

    def offered(self, prepared: _Offer) -> None:
        assert prepared.slots is not None
        self.pool.stored(prepared.request, prepared.slots, success=True)
        self.pool.finish(prepared.request)

    def prepare_decode(self, requests: Sequence[Hashes]) -> StepInput:
        entries = []
        for keys in requests:
            prepared = self.prepare_store(keys)
            self.store(prepared)
            self.engine.complete(done=prepared.jobs, failed=(), now=NOW)
            tokens = len(keys) * TOKENS_PER_BLOCK
            self.engine.append(prepared.handle, num_tokens=tokens + 2, hashes=())
            entries.append(
                ScheduledRequest(handle=prepared.handle, computed=tokens + 1, scheduled=1)
            )
        return StepInput(requests=entries)

    def decode(self, prepared: StepInput) -> int:
        return len(self.engine.step(prepared, now=NOW).stores)

    def _offer(self, group: int, keys: Hashes) -> _Offer:
        ends = np.arange(1, len(keys) + 1, dtype=np.int64) * TOKENS_PER_BLOCK
        return _Offer(self.pool.open(), [KeyRun(group=group, hashes=keys, positions=ends)])

    def _announce(self, handle: int, keys: Hashes) -> None:
        tokens = len(keys) * TOKENS_PER_BLOCK
        self.engine.new_request(
            handle,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            hashes=keys,
            caps=CAPS,
            skip_reading_prefix_cache=False,
        )

    def _finish(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.engine.finish(handle, status="aborted", computed=0)
        self.engine.step(StepInput(requests=(), finished=handles), now=NOW)
