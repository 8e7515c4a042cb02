"""Two engines of a partition through every hook, in any legal order (a stateful machine)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.scheduler.builders import full, hashes_of, sliding

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import (
    CopyPlan,
    GroupConfig,
    RequestCaps,
    ScheduledRequest,
    SchedulerConfig,
    StepInput,
)
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.slots import EMPTY, READY, WRITING

GROUPS: list[tuple[GroupConfig, ...]] = [
    (full(4),),
    (full(4), sliding(4, 8)),
    (full(8), sliding(4, 6, extra=1), full(8, eagle=True)),
]
PROMPTS = 3
BLOCKS = 64


@dataclass
class Live:
    """A request as its engine knows it."""

    handle: int
    prompt: int
    tokens: int
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    running: bool = False
    loading: CopyPlan | None = None
    over: bool = False


@dataclass
class Side:
    """An engine: its requests, its blocks, and what its workers have to do."""

    engine: EngineScheduler
    live: dict[int, Live] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: list(range(1, BLOCKS)))
    jobs: dict[int, CopyPlan] = field(default_factory=dict)
    writes: dict[int, CopyPlan] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    next: int = 0


class Sessions(RuleBasedStateMachine):
    """After each rule the pool is what the open jobs of both engines make of it."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        per_chunk=st.integers(1, 2),
        slots=st.integers(3, 24),
        policy=st.sampled_from(["lru", "arc"]),
        caching=st.booleans(),
    )
    def begin(
        self,
        groups: tuple[GroupConfig, ...],
        per_chunk: int,
        slots: int,
        policy: str,
        caching: bool,  # noqa: FBT001 - drawn by hypothesis
    ) -> None:
        self.groups = groups
        self.pool = PartitionPool(HostConfig(eviction_policy=policy))  # type: ignore[arg-type]
        self.pool.add_slots(slots)
        self.config = SchedulerConfig(
            groups=groups,
            tokens_per_hash=4,
            blocks_per_chunk=per_chunk,
            enable_prefix_caching=caching,
        )
        self.sides = [self._side(), self._side()]

    def _side(self) -> Side:
        engine = EngineScheduler(self.config, self.pool, holds_slots_at_reset=True)
        return Side(engine=engine)

    # --- requests --------------------------------------------------------------------------

    @rule(
        which=st.integers(0, 1),
        prompt=st.integers(0, PROMPTS - 1),
        tokens=st.integers(5, 60),
        cap=st.none() | st.integers(0, 60),
        prompt_only=st.booleans(),
    )
    def new(self, which: int, prompt: int, tokens: int, cap: int | None, prompt_only: bool) -> None:  # noqa: FBT001
        side = self.sides[which]
        side.next += 1
        live = Live(handle=side.next, prompt=prompt, tokens=tokens)
        side.live[live.handle] = live
        side.engine.new_request(
            live.handle,
            num_tokens=tokens,
            num_prompt_tokens=tokens,
            hashes=hashes_of(prompt, tokens // 4),
            caps=RequestCaps(max_load_tokens=cap, prompt_only=prompt_only),
            skip_reading_prefix_cache=False,
        )
        if tokens % 4:
            self._admit(side, live, tokens)

    def _pick(self, which: int, at: int, *, running: bool) -> tuple[Side, Live] | None:
        side = self.sides[which]
        fit = [
            live
            for live in side.live.values()
            if live.running is running and not live.over and live.loading is None
        ]
        return (side, fit[at % len(fit)]) if fit else None

    @rule(which=st.integers(0, 1), at=st.integers(0, 9), share=st.integers(1, 60))
    def admit(self, which: int, at: int, share: int) -> None:
        """Query, allocate, and load or begin to compute."""
        picked = self._pick(which, at, running=False)
        if picked is None:
            return
        self._admit(*picked, share)

    def _admit(self, side: Side, live: Live, share: int) -> None:
        found = side.engine.match(live.handle, computed=0, max_new_tokens=None, now=0.0)
        if found.tokens is None:
            return
        hit = found.tokens
        end = hit or min(live.tokens, share + 12)
        blocks = self._allocate(side, live, end)
        if blocks is None:
            return
        if hit:
            self._null_history(side, blocks, end)
        live.blocks = blocks
        load = side.engine.alloc(
            live.handle,
            external_tokens=hit,
            blocks=[np.array(table, dtype=np.int64) for table in blocks],
        )
        if load.plan is not None:
            self._check_load(live, load.plan)
            live.loading = load.plan
            live.computed = hit
            side.jobs[load.plan.job] = load.plan
            self._step(side)
        else:
            live.computed = 0
            live.running = True
            self._step(side, live, end, new=True)

    def _null_history(self, side: Side, blocks: list[list[int]], end: int) -> None:
        """Like an allocator: what lies before the window of a hit has no block."""
        for group, table in zip(self.groups, blocks, strict=True):
            if group.window:
                kept = end - group.window + 1 - group.extra_retained_tokens
                count = max(0, kept) // group.tokens_per_block
                side.free += table[:count]
                table[:count] = [0] * count

    def _allocate(self, side: Side, live: Live, end: int) -> list[list[int]] | None:
        have = live.blocks or [[] for _ in self.groups]
        wanted = [
            -(-end // group.tokens_per_block) - len(table)
            for group, table in zip(self.groups, have, strict=True)
        ]
        if sum(wanted) > len(side.free):
            return None
        fresh = []
        for count in wanted:
            fresh.append(side.free[:count])
            side.free = side.free[count:]
        return fresh

    @rule(which=st.integers(0, 1), at=st.integers(0, 9), share=st.integers(1, 20))
    def compute(self, which: int, at: int, share: int) -> None:
        picked = self._pick(which, at, running=True)
        if picked is None:
            return
        side, live = picked
        count = min(share, live.tokens - live.computed)
        if count <= 0:
            self._sample(side, live)
            count = 1
        fresh = self._allocate(side, live, live.computed + count)
        if fresh is None:
            return
        for table, more in zip(live.blocks, fresh, strict=True):
            table.extend(more)
        self._step(side, live, count, new=False, fresh=fresh)

    def _sample(self, side: Side, live: Live) -> None:
        before = live.tokens // 4
        live.tokens += 1
        side.engine.append(
            live.handle,
            num_tokens=live.tokens,
            hashes=hashes_of(live.prompt, live.tokens // 4)[before:],
        )

    @rule(which=st.integers(0, 1), at=st.integers(0, 9), aborted=st.booleans())
    def end(self, which: int, at: int, aborted: bool) -> None:  # noqa: FBT001
        side = self.sides[which]
        fit = [live for live in side.live.values() if not live.over]
        if not fit:
            return
        live = fit[at % len(fit)]
        live.over = True
        computed = live.computed if live.running else 0
        status = "aborted" if aborted or computed < live.tokens - 1 else "stopped"
        side.engine.finish(live.handle, status=status, computed=computed)
        side.ended.append(live.handle)

    @rule(which=st.integers(0, 1), at=st.integers(0, 9))
    def preempt(self, which: int, at: int) -> None:
        picked = self._pick(which, at, running=True)
        if picked is None:
            return
        side, live = picked
        side.preempted.append(live.handle)
        live.running = False
        self._step(side)
        self._free(side, live)
        live.blocks = []
        live.computed = 0

    @rule(which=st.integers(0, 1))
    def idle(self, which: int) -> None:
        self._step(self.sides[which])

    # --- a step ----------------------------------------------------------------------------

    def _step(
        self,
        side: Side,
        live: Live | None = None,
        count: int = 0,
        *,
        new: bool = False,
        fresh: list[list[int]] | None = None,
    ) -> None:
        requests = []
        if live is not None:
            tables = live.blocks if new else fresh
            assert tables is not None
            requests.append(
                ScheduledRequest(
                    handle=live.handle,
                    computed=live.computed,
                    scheduled=count,
                    blocks=[np.array(table, dtype=np.int64) for table in tables],
                    new=new,
                )
            )
            live.computed += count
        finished, side.ended = side.ended, []
        preempted, side.preempted = side.preempted, []
        result = side.engine.step(
            StepInput(requests=requests, finished=finished, preempted=preempted), now=0.0
        )
        for plan in result.stores:
            assert len(set(plan.slots.tolist())) == len(plan.keys)
            assert (self.pool.host.table.refs[plan.slots] == WRITING).all()
            side.jobs[plan.job] = plan
        for job in result.flush:
            self._finish(side, job)
        for handle in finished:
            gone = side.live.pop(handle)
            if gone.loading is not None and gone.loading.job in side.jobs:
                self._finish(side, gone.loading.job)
            self._free(side, gone)

    def _free(self, side: Side, live: Live) -> None:
        side.free += [block for table in live.blocks for block in table if block]

    def _finish(self, side: Side, job: int, *, success: bool = True) -> None:
        plan = side.jobs.pop(job, None)
        if plan is None:
            return
        side.engine.complete(
            done=[job] if success else [], failed=[] if success else [job], now=0.0
        )
        for live in list(side.live.values()):
            if live.loading is plan and not live.over:
                live.loading = None
                live.running = success
                self._loaded(side, live, success=success)

    def _loaded(self, side: Side, live: Live, *, success: bool) -> None:
        if success:
            live.running = True
            count = max(1, min(4, live.tokens - live.computed))
            fresh = None
            if live.computed + count <= live.tokens:
                fresh = self._allocate(side, live, live.computed + count)
            if fresh is not None:
                for table, more in zip(live.blocks, fresh, strict=True):
                    table.extend(more)
                self._step(side, live, count, new=True)
                return
            side.preempted.append(live.handle)
        live.running = False
        self._step(side)
        self._free(side, live)
        live.blocks = []
        live.computed = 0

    @precondition(lambda self: any(side.jobs for side in self.sides))
    @rule(which=st.integers(0, 1), at=st.integers(0, 9), success=st.booleans())
    def complete(self, which: int, at: int, success: bool) -> None:  # noqa: FBT001
        side = self.sides[which]
        if side.jobs:
            self._finish(side, sorted(side.jobs)[at % len(side.jobs)], success=success)

    @rule(which=st.integers(0, 1), luck=st.integers(0, 5))
    def reset(self, which: int, luck: int) -> None:
        side = self.sides[which]
        if luck or side.ended:
            return
        side.engine.reset()
        self._step(side)

    @rule(which=st.integers(0, 1), luck=st.integers(0, 11))
    def die(self, which: int, luck: int) -> None:
        """The engine and its workers are gone; another one takes its place."""
        if luck:
            return
        self.sides[which].engine.close()
        self.sides[which].engine.close()
        self.sides[which] = self._side()

    @rule(count=st.integers(1, 4))
    def more_memory(self, count: int) -> None:
        self.pool.add_slots(count)

    # --- what always holds -----------------------------------------------------------------

    def _check_load(self, live: Live, plan: CopyPlan) -> None:
        table = self.pool.host.table
        assert (table.refs[plan.slots] > READY).all()
        known = set(hashes_of(live.prompt, live.tokens // 4))
        for slot, (group, key) in zip(dict.fromkeys(plan.slots.tolist()), plan.keys, strict=True):
            assert key in known
            assert self.pool.host.keys(np.array([slot])) == [(group, key)]

    @invariant()
    def refs_are_those_of_the_open_jobs(self) -> None:
        if not hasattr(self, "pool"):
            return
        table = self.pool.host.table
        pins: dict[int, int] = {}
        writing: set[int] = set()
        for side in self.sides:
            jobs = side.engine.jobs
            for job in (*jobs.open_jobs(), *jobs.held_jobs()):
                if job.store:
                    assert writing.isdisjoint(job.slots.tolist())
                    writing.update(job.slots.tolist())
                for slot in () if job.store else job.slots.tolist():
                    pins[slot] = pins.get(slot, 0) + 1
        refs = table.refs[: table.count]
        assert set(np.flatnonzero(refs == WRITING).tolist()) == writing
        assert {s: int(refs[s]) for s in np.flatnonzero(refs > 0).tolist()} == pins
        in_use = int(np.count_nonzero(refs != EMPTY))
        assert in_use + table.num_free == table.count
        assert len(set(table.freed)) == len(table.freed)

    @invariant()
    def every_key_leads_to_its_slot(self) -> None:
        if not hasattr(self, "pool"):
            return
        host = self.pool.host
        slots = np.flatnonzero(host.table.keyed[: host.table.count])
        for slot, (group, key) in zip(slots.tolist(), host.keys(slots), strict=True):
            assert host.index.find(group, [key]).tolist() == [slot]

    def teardown(self) -> None:
        """When all is acknowledged nothing is pinned; when all left nothing is in use."""
        if not hasattr(self, "pool"):
            return
        for side in self.sides:
            while side.jobs:
                self._finish(side, min(side.jobs))
            assert not side.engine.jobs.busy
        table = self.pool.host.table
        assert (table.refs[: table.count] <= READY).all()
        assert not (table.refs[: table.count] == WRITING).any()
        for side in self.sides:
            side.engine.close()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(stateful_step_count=40)
