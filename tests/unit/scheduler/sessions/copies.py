"""Requests as an engine knows them, and the copies that it was told to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from tests.unit.scheduler.builders import hashes_of
from tests.unit.scheduler.sessions.agent import Agent, Content
from tests.unit.scheduler.sessions.blocks import Tables

from kvoffload_agent.scheduler.types import CopyPlan, RequestCaps, SchedulerConfig
from kvoffload_agent.tiers.slots import READY, WRITING
from kvoffload_api.wire.messages import Plan
from kvoffload_client.jobs import Job, JobKey, Kind
from kvoffload_client.requests import RequestState

TOKENS_PER_HASH = 4


@dataclass(frozen=True, kw_only=True)
class Session:
    """An engine's registration with one life of the agent."""

    agent: Agent
    number: int
    config: SchedulerConfig

    def key(self, job: int) -> JobKey:
        return JobKey(self.agent.boot, self.number, job)


@dataclass(kw_only=True, eq=False)
class Live:
    """A request. ``blocks``: per group, 0 = null. ``promise``: a hit and what it rests on."""

    handle: int
    prompt: int
    num_prompt: int
    tokens: int
    caps: RequestCaps
    client: RequestState
    computed: int = 0
    blocks: Tables = field(default_factory=list)
    state: Literal["waiting", "loading", "loaded", "running", "over"] = "waiting"
    promise: tuple[int, object] | None = None

    @property
    def hashes(self) -> list[bytes]:
        return hashes_of(self.prompt, self.tokens // TOKENS_PER_HASH)


@dataclass(kw_only=True, eq=False)
class Copy:
    """A job that was planned, in the life of the agent that planned it.

    ``entries``: (block, slot, index inside the chunk, what it holds). ``left``: ranks to end it.
    """

    job: Job
    agent: Agent
    live: Live
    entries: list[tuple[int, int, int, Content]]
    left: int
    failed: bool = False


def load(plan: CopyPlan, live: Live, at: Session) -> Copy:
    """Return a load, after a look at its plan: what it reads is ready and is of the request."""
    pool = at.agent.pool
    assert (pool.host.table.refs[plan.slots] > READY).all(), "a load of what is not ready"
    assert {key for _, key in plan.keys} <= set(live.hashes)
    slots = list(dict.fromkeys(plan.slots.tolist()))
    assert pool.host.keys(np.array(slots, dtype=np.int64)) == list(plan.keys)
    numbers = [
        first + entry
        for first, size in zip(plan.first, plan.group_sizes, strict=True)
        for entry in range(size)
    ]
    return _copy(plan, live, at, numbers, kind="load")


def store(plan: CopyPlan, live: Live, at: Session) -> Copy:
    """Return a store, after a look at its plan: it writes its own slots, within the caps."""
    pool, per_chunk = at.agent.pool, at.config.blocks_per_chunk
    assert len(set(plan.slots.tolist())) == len(plan.keys)
    assert (pool.host.table.refs[plan.slots] == WRITING).all()
    cap = live.caps.max_offload_tokens
    limit = live.num_prompt if live.caps.prompt_only else live.tokens
    limit = limit if cap is None else min(limit, cap)
    end_of = {key: (number + 1) * TOKENS_PER_HASH for number, key in enumerate(live.hashes)}
    numbers = []
    keys = pool.host.keys(plan.slots)
    for (group, key), index in zip(keys, plan.index.tolist(), strict=True):
        assert end_of[key] <= limit, "a store beyond what may be offloaded"
        chunk = at.config.groups[group].tokens_per_block * per_chunk
        numbers.append((end_of[key] // chunk - 1) * per_chunk + index)
    return _copy(plan, live, at, numbers, kind="store")


def _copy(plan: CopyPlan, live: Live, at: Session, numbers: Sequence[int], *, kind: Kind) -> Copy:
    """``numbers``: of each entry's block in the request."""
    assert 0 not in plan.blocks
    sizes = list(plan.group_sizes)
    groups = np.repeat(np.arange(len(sizes)), sizes).tolist()
    column = plan.blocks.astype("<i8").tobytes()
    nowhere = bytes(len(column))  # fences ask for blocks alone
    wire = Plan(plan.job, plan.handle, column, nowhere, nowhere, sizes, [1] * len(sizes))
    columns = (plan.blocks.tolist(), plan.slots.tolist(), plan.index.tolist(), groups, numbers)
    return Copy(
        job=Job(at.key(plan.job), kind, wire),
        agent=at.agent,
        live=live,
        entries=[
            (block, slot, index, (live.prompt, group, number))
            for block, slot, index, group, number in zip(*columns, strict=True)
        ],
        left=at.config.num_workers,
    )
