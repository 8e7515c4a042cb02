"""An engine as the scheduler meets it: requests, KV blocks and their contents, copies, fences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tests.unit.scheduler.sessions import copies, flushes, messages
from tests.unit.scheduler.sessions.agent import Agent
from tests.unit.scheduler.sessions.blocks import Blocks, Tables
from tests.unit.scheduler.sessions.copies import Copy, Live, Session
from tests.unit.scheduler.sessions.messages import Scheduled

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import LoadResult, RequestCaps, SchedulerConfig
from kvoffload_agent.tiers.pool import NotReadyError
from kvoffload_client.fences import Fences
from kvoffload_client.jobs import JobKey
from kvoffload_client.requests import RequestState


class Engine:
    """Follows vLLM's scheduler: blocks are free once their request ended or was preempted.

    Blocks that left a sliding window are free while their request runs.
    """

    def __init__(self, config: SchedulerConfig, agent: Agent) -> None:
        self.config = config
        self.live: dict[int, Live] = {}
        self.blocks = Blocks(config.groups)
        self.copies: dict[JobKey, Copy] = {}
        self.planned: list[Copy] = []
        self.ended: list[int] = []
        self.fences = Fences([group.tokens_per_block for group in config.groups])
        self._handles = 0
        self._events = 0
        self.join(agent)

    def join(self, agent: Agent) -> None:
        """Register with an agent, which knows no request of ours."""
        self.agent = agent
        agent.num_sessions += 1
        self.session = Session(agent=agent, number=agent.num_sessions, config=self.config)
        self.scheduler = EngineScheduler(self.config, agent.pool, safe_reset=True)
        self.known: set[int] = set()
        self.tabled: set[int] = set()
        for copy in self.planned:
            self.recompute(copy.live)
        self.planned = []
        for live in self.live.values():
            live.promise = None

    def requests(self, *states: str) -> list[Live]:
        return [live for live in self.live.values() if live.state in states]

    # --- hooks -------------------------------------------------------------------------------

    def new(self, prompt: int, tokens: int, caps: RequestCaps) -> Live:
        self._handles += 1
        live = Live(
            handle=self._handles,
            prompt=prompt,
            num_prompt=tokens,
            tokens=tokens,
            caps=caps,
            client=RequestState(
                handle=self._handles,
                request_id="r",
                num_tokens=tokens,
                num_prompt_tokens=tokens,
                params=None,
                skip_reading_prefix_cache=False,
            ),
        )
        self.live[live.handle] = live
        self.announce(live)
        return live

    def announce(self, live: Live) -> None:
        if live.handle not in self.known:
            self.known.add(live.handle)
            self.tabled.discard(live.handle)
            self.scheduler.new_request(
                live.handle,
                num_tokens=live.tokens,
                num_prompt_tokens=live.num_prompt,
                hashes=live.hashes,
                caps=live.caps,
                skip_reading_prefix_cache=False,
            )

    def set_caps(self, live: Live, caps: RequestCaps) -> None:
        live.caps = caps
        if live.handle in self.known:
            self.scheduler.set_caps(live.handle, caps)

    def match(self, live: Live) -> int | None:
        self.announce(live)
        self._events += 1
        found = self.scheduler.match(
            live.handle, computed=0, max_new_tokens=None, now=self.agent.now
        )
        live.promise = None
        if found.tokens is not None:
            cap = live.caps.max_load_tokens
            assert 0 <= found.tokens <= (live.tokens if cap is None else min(cap, live.tokens))
            assert found.tokens == 0 or found.tokens >= live.caps.min_load_tokens
            live.promise = (found.tokens, self._rests_on())
        return found.tokens

    def _rests_on(self) -> object:
        """What a promise rests on: others keep it, the engine's own doings may break it."""
        return self._events, self.agent.losses

    def alloc(self, live: Live, hit: int, blocks: Tables) -> bool:
        """Load a hit that was promised; False if it is no longer there."""
        assert live.promise is not None
        untouched = live.promise[1] == self._rests_on()
        live.promise = None
        live.blocks = blocks
        self.fences.allocated(live.client, blocks, loads=hit > 0)
        tables = [np.array(table, dtype=np.int64) for table in blocks]
        result = LoadResult(plan=None)
        try:
            result = self.scheduler.alloc(live.handle, external_tokens=hit, blocks=tables)
        except NotReadyError:
            assert not untouched, "another engine broke a promise"
        if not hit:
            assert result.plan is None
            return True
        if result.plan is None:
            assert not untouched
            self._release(live)
            return False
        self.planned.append(copies.load(result.plan, live, self.session))
        live.state = "loading"
        live.computed = hit
        return True

    def sample(self, live: Live) -> None:
        before = len(live.hashes)
        live.tokens += 1
        if live.handle in self.known:
            hashes = live.hashes[before:]
            self.scheduler.append(live.handle, num_tokens=live.tokens, hashes=hashes)

    def finish(self, live: Live, status: str) -> None:
        if live.handle in self.known:
            computed = live.computed if live.state == "running" else 0
            self.scheduler.finish(live.handle, status=status, computed=computed)
        self.ended.append(live.handle)
        if live.state != "loading":
            self._release(live)
        live.state = "over"

    def reset(self) -> None:
        self.agent.losses += 1
        self.fences.reset()
        self.scheduler.reset()

    def recompute(self, live: Live) -> None:
        """Begin anew; of a request that has ended, only its blocks are left to be freed."""
        self._release(live)
        live.computed = 0
        if live.state != "over":
            live.state = "waiting"

    def _release(self, live: Live) -> None:
        self.blocks.release(live.blocks)
        live.blocks = []

    # --- a step ------------------------------------------------------------------------------

    def step(
        self,
        scheduled: Sequence[Scheduled] = (),
        preempted: Sequence[int] = (),
    ) -> None:
        """Build a step, let its flushes end, then write."""
        for live, _, added in scheduled:
            if added is None:
                self.announce(live)
                self.tabled.add(live.handle)
        finished, self.ended = self.ended, []
        step = messages.of_engine(scheduled, finished, preempted)
        flush = self.fences.begin(step)
        all_known = all(live.handle in self.tabled for live, _, _ in scheduled)
        all_known &= all(handle in self.tabled for handle in preempted)
        self.agent.now += 1
        known = messages.as_told(step, known=self.known, tabled=self.tabled)
        result = self.scheduler.step(known, now=self.agent.now)
        loads, self.planned = self.planned, []
        for copy in loads:
            if copy.live.state == "over":  # it was never begun
                self._tell(copy, success=False, ranks=copy.left)
                self._release(copy.live)
            else:
                self._begin(copy)
        new = set()
        for plan in result.stores:
            copy = copies.store(plan, self.live[plan.handle], self.session)
            self._begin(copy)
            new.add(copy.job.key)
            if self.fences.must_end_now(copy.job):
                flush.add(copy.job.key)
        # A load that was planned before a reset and begins now writes blocks of its own request
        # only; the client waits for it because it is told to.
        begun = {copy.job.key for copy in loads}
        told = {self.session.key(job) for job in result.flush} - begun
        flushes.check(
            self.copies,
            self.blocks.fresh,
            flush,
            told,
            boot=self.agent.boot,
            new=new,
            all_known=all_known,
        )
        self.fences.end()
        self.blocks.fresh.clear()
        self._events += 1
        for key in sorted(flush):
            self.end(key)
        for live, count, _ in scheduled:
            self.blocks.compute(live.prompt, live.blocks, live.computed, live.computed + count)
            live.computed += count
        for handle in finished:
            del self.live[handle]

    def _begin(self, copy: Copy) -> None:
        self.copies[copy.job.key] = copy
        self.fences.enter(copy.job)

    # --- copies ------------------------------------------------------------------------------

    def end(self, key: JobKey, *, success: bool = True, ranks: int | None = None) -> None:
        """Let ``ranks`` more ranks end a job, all that are left if None."""
        copy = self.copies[key]
        ranks = copy.left if ranks is None else min(ranks, copy.left)
        copy.left -= ranks
        copy.failed |= not success
        self._tell(copy, success=success, ranks=ranks)
        if copy.left:
            return
        del self.copies[key]
        self.fences.ended([key])
        if copy.job.kind == "store":
            self._stored(copy)
        else:
            self._loaded(copy)

    def _tell(self, copy: Copy, *, success: bool, ranks: int) -> None:
        if copy.agent is not self.agent:
            return
        number = [copy.job.key.job]
        if copy.job.kind == "load" and not success:
            self.agent.losses += 1
        for _ in range(ranks):
            self.scheduler.complete(
                done=number if success else [],
                failed=[] if success else number,
                now=self.agent.now,
            )

    def _stored(self, copy: Copy) -> None:
        for block, slot, index, content in copy.entries:
            copy.agent.memory.pop((slot, index), None)
            if not copy.failed:
                assert self.blocks.holds(block, content), "a block is stored that holds others' KV"
                copy.agent.memory[slot, index] = content

    def _loaded(self, copy: Copy) -> None:
        live = copy.live
        if copy.failed or live.state == "over":
            self.recompute(live)
            return
        for block, slot, index, content in copy.entries:
            assert copy.agent.memory.get((slot, index)) == content, "a load brings others' KV"
            self.blocks.fill(block, content)
        live.state = "loaded"
        live.computed = min(live.computed, live.tokens - 1)
