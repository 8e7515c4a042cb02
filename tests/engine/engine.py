"""The scheduling loop of the reference engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.engine.content import DeviceMemory
from tests.engine.pool import BlockPool
from tests.engine.requests import Request, Status, blocks_for
from tests.engine.runner import Runner
from tests.engine.stats import Stats, StatsFile
from tests.engine.trace import HASH_BYTES, TOKENS_PER_BLOCK, TraceRequest, initial_hash

from kvoffload_api.wire.messages import Group
from kvoffload_client import (
    ClientSettings,
    EngineLayout,
    ScheduledRequest,
    SchedulerSession,
    StepInput,
)

# Nothing to compute and something to wait for: look again as often as an engine's idle loop does.
_IDLE_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes of the engine. ``tokens_per_step``: budget of chunked prefill and decode together.

    ``step_seconds``: what a step with work takes at least; a device's takes 10 to 50 ms.
    ``kv_file``: a file of ``device_bytes`` for the KV memory; then the agent copies.
    """

    num_blocks: int = 1024
    num_layers: int = 4
    layer_bytes: int = 32 * 1024
    blocks_per_chunk: int = 1
    tokens_per_step: int = 2048
    step_seconds: float = 0.0
    concurrency: int = 16
    seed: int = 0
    params: Any = None
    abort_every: int = 0
    poison: bool = False
    kv_file: int | None = None

    @property
    def device_bytes(self) -> int:
        """Return the bytes of the KV memory."""
        return self.num_blocks * self.num_layers * self.layer_bytes

    def layout(self) -> EngineLayout:
        return EngineLayout(
            identity={
                "model": "kvoffload-reference",
                "kv_dtype": "uint8",
                "hash_algorithm": "sha256",
                "initial_hash": initial_hash(self.seed),
            },
            groups=[
                Group(
                    kind="full",
                    tokens_per_block=TOKENS_PER_BLOCK,
                    block_bytes=self.num_layers * self.layer_bytes,
                )
            ],
            world_size=1,
            tokens_per_hash=TOKENS_PER_BLOCK,
            blocks_per_chunk=self.blocks_per_chunk,
            block_hash_bytes=HASH_BYTES,
            copies="engine" if self.kv_file is None else "agent",
        )


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step while it is being scheduled. ``work``: (request, first token, tokens)."""

    budget: int
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    work: list[tuple[Request, int, int]] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)


class Engine:
    """Schedules requests, and has its ``Runner`` compute, load and store."""

    def __init__(self, *, settings: ClientSettings, options: EngineOptions) -> None:
        self.options = options
        self.stats = Stats()
        self.pool = BlockPool(options.num_blocks)
        memory = DeviceMemory(
            num_blocks=options.num_blocks,
            num_layers=options.num_layers,
            layer_bytes=options.layer_bytes,
            file=options.kv_file,
        )
        self.session = SchedulerSession(settings=settings, layout=options.layout())
        self.runner = Runner(
            settings=settings,
            memory=memory,
            stats=self.stats,
            poison=options.poison,
            delegated=options.kv_file is not None,
        )
        self._initial = initial_hash(options.seed)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._finished: list[int] = []

    @property
    def max_request_tokens(self) -> int:
        """Return how long a request may be: two of them fit, so that one can always run."""
        return (self.options.num_blocks - 1) // 2 * TOKENS_PER_BLOCK

    def start(self, *, timeout_seconds: float) -> bool:
        """Connect; return whether the agent was there in time."""
        self.session.start()
        self.runner.worker.start()
        begun = time.monotonic()
        ready = self.session.wait_ready(timeout_seconds=timeout_seconds)
        left = max(0.0, timeout_seconds - (time.monotonic() - begun))
        return ready and self.runner.worker.wait_ready(timeout_seconds=left)

    def close(self) -> None:
        self.runner.worker.close()
        self.session.close()

    def run(self, trace: Iterable[TraceRequest], report: StatsFile | None = None) -> None:
        """Serve all requests, ``concurrency`` at a time."""
        source = iter(trace)
        more = True
        while more or self._requests or self._finished:
            while more and len(self._requests) < self.options.concurrency:
                arrival = next(source, None)
                more = arrival is not None
                if arrival is not None:
                    self.add(arrival)
            begun = time.monotonic()
            busy = self.step()
            self.stats.connected = self.session.ready
            if report is not None:
                report.write(self.stats)
            took = time.monotonic() - begun
            time.sleep(max(0.0, self.options.step_seconds - took) if busy else _IDLE_SECONDS)
        self.drain()

    def drain(self, *, timeout_seconds: float = 10.0) -> None:
        """Step until nothing is in flight, as an idle engine does."""
        deadline = time.monotonic() + timeout_seconds
        while self.step() or self.runner.busy:
            if time.monotonic() > deadline:
                raise TimeoutError("jobs are still in flight")
            time.sleep(_IDLE_SECONDS)

    def add(self, trace: TraceRequest, *, params: Any = None) -> Request:
        """Take in a request; its lookup starts at once."""
        request = Request(
            trace=trace, hashes=trace.hashes(self._initial), num_tokens=trace.num_prompt_tokens
        )
        known = request.known_hashes()
        request.handle = self.session.new_request(
            request_id=trace.request_id,
            num_tokens=request.num_tokens,
            num_prompt_tokens=trace.num_prompt_tokens,
            hashes=known,
            params=params if params is not None else self.options.params,
        )
        request.told = len(known)
        self._requests[request.handle] = request
        self._waiting.append(request)
        self.stats.requests += 1
        self.stats.prompt_tokens += trace.num_prompt_tokens
        self.session.prefetch(request.handle, computed=self._local_tokens(request))
        return request

    def abort(self, request: Request) -> None:
        """End a request before its time; blocks under a load are kept until it ends."""
        self.session.finish(request.handle, status="aborted", computed=request.computed)
        self.stats.requests_aborted += 1
        loading = request.status is Status.WAITING_FOR_KV
        if request in self._running:
            self._running.remove(request)
        if request in self._waiting:
            self._waiting.remove(request)
        request.status = Status.ABORTED
        self._finished.append(request.handle)
        if not loading:
            self._drop(request)

    def step(self) -> bool:
        """Schedule and run one step; return whether it computed anything."""
        self._take_results()
        step = _Step(budget=self.options.tokens_per_step)
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        if not step.work and not self._running:
            self._break_deadlock()
        finished, self._finished = self._finished, []
        outcome = self.session.step(
            StepInput(requests=step.scheduled, finished=finished, preempted=step.preempted)
        )
        for handle in outcome.failed_loads:
            self._load_ended(handle, ok=False)
        self.runner.run(outcome, step.work)
        for request, first, count in step.work:
            self._advance(request, first + count)
        return bool(step.work)

    # --- scheduling --------------------------------------------------------------------------

    def _schedule_running(self, step: _Step) -> None:
        for request in list(self._running):
            if request.status is not Status.RUNNING or step.budget == 0:
                continue
            count = min(request.num_tokens - request.computed, step.budget)
            added = self._grow(request, request.computed + count, step)
            if added is not None:
                self._enter(step, request, count, added)

    def _grow(self, request: Request, tokens: int, step: _Step) -> list[int] | None:
        """Give a running request blocks, preempting the youngest others; None: it was preempted."""
        needed = blocks_for(tokens) - len(request.table)
        while (added := self.pool.allocate(max(0, needed))) is None:
            victim = self._running[-1]
            self._preempt(victim, step)
            if victim is request:
                return None
        request.table += added
        return added

    def _preempt(self, request: Request, step: _Step) -> None:
        self._running.remove(request)
        self.pool.release(request.table)
        request.table.clear()
        request.computed = 0
        request.status = Status.PREEMPTED
        request.recompute = False
        self._waiting.appendleft(request)
        # What this step had given to it, it does not compute.
        scheduled = [item for item in step.scheduled if item.handle != request.handle]
        step.budget += sum(item.scheduled for item in step.scheduled) - sum(
            item.scheduled for item in scheduled
        )
        step.scheduled = scheduled
        step.work = [item for item in step.work if item[0] is not request]
        step.preempted.append(request.handle)
        self.stats.preemptions += 1

    def _schedule_waiting(self, step: _Step) -> None:
        for request in list(self._waiting):
            if step.budget == 0:
                return
            if request.status is Status.WAITING_FOR_KV:
                continue
            if not self._admit(request, step):
                return

    def _admit(self, request: Request, step: _Step) -> bool:
        """Let a waiting request run or load; False: there is no room, nobody behind it gets any."""
        if request.table:  # its load has ended, or failed
            return self._start(request, step, [])
        shared = self._local_blocks(request)
        local = len(shared) * TOKENS_PER_BLOCK
        external = 0 if request.recompute else self._match(request, local)
        if external is None:
            return True
        tokens = local + external
        if not external:
            tokens = min(request.num_tokens, local + step.budget)
        self.pool.share(shared)
        fresh = self.pool.allocate(blocks_for(tokens) - len(shared))
        if fresh is None:
            self.pool.release(shared)
            return False
        request.table = shared + fresh
        request.computed = request.local = local
        self.stats.gpu_hit_tokens += local
        signed = [-block if self.pool.has_hash(block) else block for block in request.table]
        self.session.alloc(request.handle, external_tokens=external, blocks=[signed])
        if external:
            request.loading = external
            request.status = Status.WAITING_FOR_KV
            return True
        return self._start(request, step, fresh)

    def _break_deadlock(self) -> None:
        """Take its blocks from a waiting request if all wait for blocks that others hold."""
        holders = [request for request in self._waiting if request.table]
        if holders and all(r.status is not Status.WAITING_FOR_KV for r in holders):
            self.pool.release(holders[-1].table)
            holders[-1].table.clear()
            holders[-1].recompute = False

    def _match(self, request: Request, local: int) -> int | None:
        outcome = self.session.match(request.handle, computed=local)
        if outcome.tokens is None:
            self.stats.asked_later += 1
            return None
        if outcome.limited_by.startswith("load."):
            askable = (request.num_tokens - local) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
            self.stats.refuse(outcome.policy, max(0, askable - outcome.tokens))
        return outcome.tokens

    def _start(self, request: Request, step: _Step, fresh: Sequence[int]) -> bool:
        """Move a waiting request with its first blocks to the running ones."""
        count = min(request.num_tokens - request.computed, step.budget)
        added = self.pool.allocate(
            max(0, blocks_for(request.computed + count) - len(request.table))
        )
        if added is None:
            return False
        request.table += added
        resumed = request.scheduled_before
        self._waiting.remove(request)
        self._running.append(request)
        request.status = Status.RUNNING
        self._enter(step, request, count, request.table, new=not resumed, resumed=resumed)
        request.scheduled_before = True
        return True

    def _enter(
        self,
        step: _Step,
        request: Request,
        count: int,
        blocks: Sequence[int],
        *,
        new: bool = False,
        resumed: bool = False,
    ) -> None:
        step.budget -= count
        step.work.append((request, request.computed, count))
        step.scheduled.append(
            ScheduledRequest(
                handle=request.handle,
                computed=request.computed,
                scheduled=count,
                blocks=[list(blocks)],
                new=new,
                resumed=resumed,
            )
        )

    def _local_blocks(self, request: Request) -> list[int]:
        # At least one token must be computed, to have something to sample from.
        usable = request.hashes[: (request.num_tokens - 1) // TOKENS_PER_BLOCK]
        return self.pool.cached_prefix(usable)

    def _local_tokens(self, request: Request) -> int:
        return len(self._local_blocks(request)) * TOKENS_PER_BLOCK

    # --- after the forward ---------------------------------------------------------------------

    def _advance(self, request: Request, computed: int) -> None:
        """Enter what was computed; sample a token when all known ones are."""
        self._register(request, request.computed, computed)
        request.computed = computed
        if computed < request.num_tokens:
            return
        if request.ended:
            self._finish(request)
            return
        request.num_tokens += 1
        known = request.known_hashes()
        self.session.append(
            request.handle, num_tokens=request.num_tokens, hashes=known[request.told :]
        )
        request.told = len(known)
        every = self.options.abort_every
        if every and request.handle % every == 0:
            self.abort(request)

    def _register(self, request: Request, before: int, after: int) -> None:
        for index in range(before // TOKENS_PER_BLOCK, after // TOKENS_PER_BLOCK):
            self.pool.register(request.table[index], request.hashes[index])

    def _finish(self, request: Request) -> None:
        self.runner.verify(request)
        self.session.finish(request.handle, status="length", computed=request.computed)
        self._running.remove(request)
        self._finished.append(request.handle)
        self.stats.requests_done += 1
        self._drop(request)

    def _drop(self, request: Request) -> None:
        self.pool.release(request.table)
        request.table.clear()
        del self._requests[request.handle]

    def _take_results(self) -> None:
        results = self.runner.worker.poll()
        for result in results:
            if result.kind == "load":
                self._load_ended(result.handle, ok=result.ok)
            self.runner.count(result)
        self.session.complete(result.key for result in results)

    def _load_ended(self, handle: int, *, ok: bool) -> None:
        request = self._requests[handle]
        tokens, request.loading = request.loading, 0
        if request.status is Status.ABORTED:
            self._drop(request)
            return
        request.status = Status.PREEMPTED if request.scheduled_before else Status.WAITING
        if not ok:
            request.recompute = True
            self.stats.failed_loads += 1
            self.stats.recomputed_tokens += tokens
            return
        self.stats.loaded_tokens += tokens
        self.stats.largest_load_tokens = max(self.stats.largest_load_tokens, tokens)
        loaded = request.local + tokens
        self.runner.verify_loaded(request, request.local, loaded)
        self._register(request, request.local, loaded)
        # All tokens have KV, but the last one must be computed to sample from.
        request.computed = min(loaded, request.num_tokens - 1)
