"""The scheduler of one engine: every hook of its scheduling step, answered without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvoffload_agent.scheduler.filters import restrict
from kvoffload_agent.scheduler.geometry import Geometry
from kvoffload_agent.scheduler.jobs import Jobs
from kvoffload_agent.scheduler.load import fit_end, plan_group
from kvoffload_agent.scheduler.lookup.budget import SyncBudget
from kvoffload_agent.scheduler.lookup.match import Matcher
from kvoffload_agent.scheduler.plan import assemble
from kvoffload_agent.scheduler.request import FINISHED, Job, RequestState
from kvoffload_agent.scheduler.sources import split
from kvoffload_agent.scheduler.store.writer import StoreWriter
from kvoffload_agent.scheduler.types import (
    Blocks,
    LoadResult,
    MatchResult,
    RequestCaps,
    SchedulerConfig,
    StepInput,
    StepResult,
)
from kvoffload_agent.tiers.pool import NotReadyError, PartitionPool
from kvoffload_agent.tiers.request import PoolRequest


class EngineScheduler:
    """Decides for one engine what to load and what to store.

    Engines of one partition share a pool; each has its own requests, jobs and numbers of jobs.
    ``now`` is monotonic seconds. Handles name requests until the step that lists them as finished.

    Args:
        config: Of the engine.
        pool: Of its partition.
        safe_reset: Whether a reset is safe where vLLM's is not. A slot that a copy uses then is
            free only once that copy has ended: the engine flushes the copy first, another engine
            of the partition would not know of it. And of a running request that is stored from 0
            again, blocks that left its window and hold others' KV by now are left out.

    Raises:
        GeometryError: the configuration contradicts itself.
    """

    def __init__(
        self, config: SchedulerConfig, pool: PartitionPool, *, safe_reset: bool = False
    ) -> None:
        self.geometry = Geometry(config)
        self.pool = pool
        self.client = pool.join()
        self.jobs = Jobs(num_workers=config.num_workers)
        self.requests: dict[int, RequestState] = {}
        self._budget = SyncBudget(self.geometry.sync_budget)
        self._matcher = Matcher(
            self.geometry,
            pool,
            self.client,
            self.jobs,
            self._budget,
            wait_for_loads=config.enable_prefix_caching,
        )
        self._writer = StoreWriter(self.geometry, pool, self.client, self.jobs)
        self._allocated: set[int] = set()
        self._request_level = pool.below.request_level
        self._safe_reset = safe_reset
        self._closed = False

    # --- requests ----------------------------------------------------------------------------

    def new_request(
        self,
        handle: int,
        *,
        num_tokens: int,
        num_prompt_tokens: int,
        hashes: Sequence[bytes],
        caps: RequestCaps,
        skip_reading_prefix_cache: bool,
    ) -> None:
        """Announce a request. A handle that is in use begins anew."""
        state = RequestState(
            handle=handle,
            geometry=self.geometry,
            pool_request=self._open(caps),
            caps=caps,
            num_prompt=num_prompt_tokens,
            skip_reading=skip_reading_prefix_cache,
        )
        state.grow(num_tokens, hashes)
        self._end(handle)
        self.requests[handle] = state

    def append(self, handle: int, *, num_tokens: int, hashes: Sequence[bytes]) -> None:
        """Let a request grow to ``num_tokens``; ``hashes`` came with it."""
        self.requests[handle].grow(num_tokens, hashes)

    def set_caps(self, handle: int, caps: RequestCaps) -> None:
        """Replace a request's caps, from its next decision on."""
        state = self.requests[handle]
        state.caps = caps
        state.wake_at = 0
        state.refused = None
        restrict(state.pool_request, self.pool.below, caps)

    def _open(self, caps: RequestCaps) -> PoolRequest:
        request = self.pool.open()
        restrict(request, self.pool.below, caps)
        return request

    # --- loading -----------------------------------------------------------------------------

    def match(
        self, handle: int, *, computed: int, max_new_tokens: int | None, now: float
    ) -> MatchResult:
        """Return how many tokens beyond ``computed`` can be loaded."""
        state = self.requests[handle]
        self.pool.advance(now)
        return self._matcher.match(state, computed=computed, max_new=max_new_tokens, now=now)

    def alloc(self, handle: int, *, external_tokens: int, blocks: Sequence[Blocks]) -> LoadResult:
        """Plan the load of ``external_tokens`` into allocated blocks.

        Without a plan for accepted tokens none of them is loaded, and the engine computes them.

        Args:
            handle: Of a request whose last query promised at least so many tokens.
            external_tokens: 0 = nothing is loaded; fewer than promised is fine.
            blocks: Per group the block table; negative = has its content, 0 = null.

        Raises:
            UnexpectedLoadError: no lookup promised this.
            NotReadyError: what was promised has left meanwhile; ask again.
        """
        state = self.requests[handle]
        tables = [np.asarray(table, dtype=np.int64) for table in blocks]
        for table in tables:
            self._allocated.update(np.abs(table).tolist())
            self._writer.loaded_into(table[table > 0])
        if external_tokens <= 0:
            self._matcher.give_up(handle)
            return LoadResult(plan=None)
        end = state.local + external_tokens
        if not fit_end(self.geometry, self.pool, self.client, state, end):
            self._matcher.give_up(handle)
            return LoadResult(plan=None)
        loads = [
            plan_group(self.geometry, self.pool, self.client, state, group, end=end, table=table)
            for group, table in zip(self.geometry.groups, tables, strict=True)
        ]
        runs = [load.run for load in loads]
        if state.sync and not self._budget.use(handle, self.geometry.load_bytes(external_tokens)):
            raise NotReadyError("a load within the step was promised too many steps ago")
        self.pool.pin(state.pool_request, runs, [load.slots for load in loads])
        self.client.give_up(handle)
        state.loaded = True
        state.waiting_since = None
        if not self._request_level:
            for group in self.geometry.groups:
                state.next_store[group.number] = -(-end // group.chunk)
        plan = assemble(
            job=self.jobs.next,
            handle=handle,
            parts=[load.part for load in loads],
            keys=[(run.group, run.hashes) for run in runs],
        )
        self.jobs.open(
            state,
            store=False,
            slots=np.concatenate([load.slots for load in loads]),
            loading=[(run.group, run.hashes) for run in runs if run.hashes and not state.sync],
        )
        groups = self.geometry.groups
        sources = split(
            self.pool,
            state.pool_request,
            groups,
            runs,
            [
                load.part.first * group.tokens_per_block
                for load, group in zip(loads, groups, strict=True)
            ],
            low=state.local,
            high=end,
        )
        return LoadResult(plan=plan, sources=sources)

    # --- storing -----------------------------------------------------------------------------

    def step(self, step: StepInput, *, now: float) -> StepResult:
        """Build one step: what is stored, and which jobs workers have to wait for."""
        self.pool.advance(now)
        loads = set(self.jobs.loads_of_step)
        for handle in step.finished:
            state = self.requests.get(handle)
            if state is not None:
                state.status = state.status or FINISHED
        for handle in step.preempted:
            state = self.requests.get(handle)
            if state is not None:
                self.jobs.flush(number for number in state.jobs if number not in loads)
        self._writer.take_tables(step, self.requests, self._allocated)
        self._allocated = set()
        stores = self._writer.stores(step, self.requests)
        for handle in step.finished:
            self._end(handle)
        self.pool.end_step(self.client)
        self.client.age_leases()
        self._budget.end_step()
        return StepResult(
            loads=self.jobs.take_loads(),
            stores=tuple(stores),
            flush=self.jobs.take_flush(),
            busy=self.jobs.busy or self.pool.busy,
            evicted=self.pool.take_evicted(),
        )

    def finish(self, handle: int, *, status: str, computed: int) -> None:
        """End a request; its last stores are issued by the step that lists it as finished."""
        state = self.requests[handle]
        state.status = status or FINISHED
        state.computed_at_end = computed
        self._matcher.give_up(handle)
        self.jobs.fence_sources(state)

    def complete(self, *, done: Sequence[int], failed: Sequence[int], now: float) -> None:
        """Take one worker's acknowledgement of each of these jobs."""
        self.pool.advance(now)
        for numbers, success in ((done, True), (failed, False)):
            for number in numbers:
                self._completed(self.jobs.acknowledge(number, success=success))
        if self.client.fenced and not self.jobs.resetting:
            self.client.fenced = False

    def reset(self) -> None:
        """Reset the prefix cache: forget every chunk, flush every job, store from 0 again."""
        for handle in [key for key, state in self.requests.items() if state.status]:
            self._end(handle)
        own = self.jobs.reset(hold=self._safe_reset)
        for state in [state for state in self.requests.values() if state.closed]:
            self._drop(state)
        self.pool.reset(self.client, own=own)
        self.client.fenced = self.jobs.resetting
        for state in self.requests.values():
            if self._safe_reset:
                self._writer.drop_lost(state)
            state.rewind()
            if not self._safe_reset:
                state.pool_request.writing = 0

    def close(self) -> None:
        """The engine and all its workers are gone: give back pins and half-written slots."""
        if self._closed:
            return
        self._closed = True
        for job in self.jobs.open_jobs():
            self._release(job, success=not job.store)
        for job in self.jobs.held_jobs():
            self._release(job, success=False)
        for handle in list(self.requests):
            self._end(handle)
        self.requests.clear()
        self.pool.leave(self.client)

    def _completed(self, job: Job | None) -> None:
        if job is None:
            return
        self._release(job, success=not job.failed)
        if job.failed and not job.store and not job.request.closed:
            # The engine computes what was to be loaded: it is stored like anything computed. Its
            # table may have come before this report.
            self._writer.drop_lost(job.request)
            job.request.rewind()
        if job.request.closed and not job.request.jobs:
            self._drop(job.request)

    def _release(self, job: Job, *, success: bool) -> None:
        if job.store:
            self.pool.stored(job.request.pool_request, job.slots, success=success)
        else:
            self.pool.unpin(job.slots, success=success)

    def _end(self, handle: int) -> None:
        """A request ended and had its last offer."""
        state = self.requests.get(handle)
        if state is None or state.closed:
            return
        state.closed = True
        self._matcher.give_up(handle)
        self.jobs.fence_sources(state)
        self.pool.finish(state.pool_request)
        if not state.jobs:
            self._drop(state)

    def _drop(self, state: RequestState) -> None:
        if self.requests.get(state.handle) is state:
            del self.requests[state.handle]
