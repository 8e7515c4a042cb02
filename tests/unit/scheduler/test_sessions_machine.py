"""Engines of a partition through every hook, in any legal order (a stateful machine).

Engines admit, compute, abort, preempt, reset and die; policy changes their requests' caps; the
agent restarts, which ends all sessions while copies go on; tiers below are slow, fail and recover.
What a load brings is compared with what was computed, over every store, eviction and promotion.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.scheduler.builders import full, sliding
from tests.unit.scheduler.sessions import laws
from tests.unit.scheduler.sessions.agent import Agent, FakeTier, Mood
from tests.unit.scheduler.sessions.copies import TOKENS_PER_HASH, Live
from tests.unit.scheduler.sessions.engine import Engine
from tests.unit.scheduler.sessions.scheduling import admit, schedule

from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps, SchedulerConfig, TierMatcher
from kvoffload_agent.tiers.host import HostConfig

GROUPS: list[tuple[GroupConfig, ...]] = [
    (full(4),),
    (full(4), sliding(4, 8)),
    (full(8), sliding(4, 6, extra=1), full(8, eagle=True)),
]
LOCALITIES = ("local", "remote")
FILTERS = [None, (), *((TierMatcher(locality=locality),) for locality in LOCALITIES)]
CAPS = st.builds(
    RequestCaps,
    max_load_tokens=st.none() | st.integers(0, 60),
    max_offload_tokens=st.none() | st.integers(0, 60),
    min_load_tokens=st.sampled_from([0, 0, 8]),
    prompt_only=st.booleans(),
    load_tiers=st.sampled_from(FILTERS),
    store_tiers=st.sampled_from(FILTERS),
    load_timeout_seconds=st.sampled_from([None, None, 0.0, 2.0]),
)
ENGINES = 2
WHICH = st.integers(0, ENGINES - 1)
AT = st.integers(0, 9)
# What throws away most of a state happens in one of so many draws, and never in the simplest one.
LUCK = st.integers(0, 7)
RARE = 5
# A request may wait for its deadline, here of one second, and a step takes one.
DEADLINE = RequestCaps(load_timeout_seconds=1.0)
PATIENCE = 4
ALIVE = ("waiting", "loading", "loaded", "running")


def some(*states: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a rule apply only while a request is in one of these states."""
    return precondition(lambda machine: machine._fit(*states))  # type: ignore[attr-defined]


class Sessions(RuleBasedStateMachine):
    """After each rule the pool is what open transfers make of it, and at the end all is done."""

    @initialize(
        groups=st.sampled_from(GROUPS),
        per_chunk=st.integers(1, 2),
        workers=st.integers(1, 2),
        slots=st.integers(3, 24),
        policy=st.sampled_from(["lru", "arc"]),
        caching=st.booleans(),
        levels=st.lists(st.booleans(), max_size=2),
    )
    def begin(
        self,
        groups: tuple[GroupConfig, ...],
        per_chunk: int,
        workers: int,
        slots: int,
        policy: str,
        *,
        caching: bool,
        levels: list[bool],
    ) -> None:
        self.host = HostConfig(eviction_policy=policy)  # type: ignore[arg-type]
        self.slots = slots
        self.tiers = [
            FakeTier(locality=locality, request_level=level, per_chunk=per_chunk)
            for locality, level in zip(LOCALITIES, levels, strict=False)
        ]
        self.config = SchedulerConfig(
            groups=groups,
            tokens_per_hash=TOKENS_PER_HASH,
            blocks_per_chunk=per_chunk,
            num_workers=workers,
            enable_prefix_caching=caching,
        )
        self.agent = self._agent(1)
        self.engines = [Engine(self.config, self.agent) for _ in range(ENGINES)]

    def _agent(self, boot: int) -> Agent:
        return Agent(boot=boot, host=self.host, slots=self.slots, tiers=self.tiers)

    def _fit(self, *states: str) -> list[tuple[Engine, Live]]:
        return [(engine, live) for engine in self.engines for live in engine.requests(*states)]

    def _pick(self, at: int, *states: str) -> tuple[Engine, Live]:
        fit = self._fit(*states)
        return fit[at % len(fit)]

    # --- requests --------------------------------------------------------------------------

    @rule(
        which=WHICH,
        prompt=st.integers(0, 2),
        tokens=st.integers(5, 60),
        caps=CAPS | st.just(RequestCaps(prompt_only=False)),
        asks=st.booleans(),
    )
    def new(self, which: int, prompt: int, tokens: int, caps: RequestCaps, *, asks: bool) -> None:
        engine = self.engines[which]
        live = engine.new(prompt, tokens, caps)
        if asks:
            admit(engine, live, tokens, now=True)

    @some(*ALIVE)
    @rule(at=AT, caps=CAPS)
    def policy_changes(self, at: int, caps: RequestCaps) -> None:
        engine, live = self._pick(at, *ALIVE)
        engine.set_caps(live, caps)

    @some("waiting")
    @rule(at=AT)
    def ask(self, at: int) -> None:
        """Query now, to allocate later."""
        engine, live = self._pick(at, "waiting")
        engine.match(live)

    @some("waiting")
    @rule(at=AT, share=st.integers(1, 60), now=st.booleans())
    def admit(self, at: int, share: int, *, now: bool) -> None:
        """Allocate for what was promised, or query; then load, or begin to compute."""
        admit(*self._pick(at, "waiting"), share, now=now)

    @some("running", "loaded")
    @rule(at=AT, share=st.integers(1, 20))
    def compute(self, at: int, share: int) -> None:
        engine, live = self._pick(at, "running", "loaded")
        scheduled = schedule(engine, live, share)
        if scheduled is not None:
            engine.step([scheduled])

    @rule(which=WHICH, prompt=st.integers(0, 1), tokens=st.integers(16, 60))
    def serve(self, which: int, prompt: int, tokens: int) -> None:
        """A request that nothing comes between: its stores are left in flight."""
        engine = self.engines[which]
        live = engine.new(prompt, tokens, RequestCaps(prompt_only=False))
        admit(engine, live, tokens, now=True)
        for key, copy in list(engine.copies.items()):
            if copy.live is live and copy.job.kind == "load":
                engine.end(key)
        if live.state == "loaded":
            scheduled = schedule(engine, live, tokens)
            if scheduled is not None:
                engine.step([scheduled])
        if live.state == "running":
            engine.finish(live, "stopped" if live.computed >= live.tokens - 1 else "aborted")

    @precondition(lambda self: any(engine.copies for engine in self.engines))
    @rule()
    def all_copies_end(self) -> None:
        for engine in self.engines:
            for key in sorted(engine.copies):
                engine.end(key)

    @some(*ALIVE)
    @rule(at=AT, aborted=st.booleans())
    def end(self, at: int, *, aborted: bool) -> None:
        engine, live = self._pick(at, *ALIVE)
        done = live.state == "running" and live.computed >= max(live.num_prompt, live.tokens - 1)
        engine.finish(live, "stopped" if done and not aborted else "aborted")

    @some("running")
    @rule(at=AT, other=AT, share=st.integers(1, 20))
    def preempt(self, at: int, other: int, share: int) -> None:
        """A request loses its blocks, another one may get them in the same step."""
        engine, live = self._pick(at, "running")
        engine.recompute(live)
        running = engine.requests("running")
        taker = schedule(engine, running[other % len(running)], share) if running else None
        engine.step([taker] if taker else [], preempted=[live.handle])

    @rule(which=WHICH)
    def idle(self, which: int) -> None:
        self.engines[which].step()

    @precondition(lambda self: any(engine.copies for engine in self.engines))
    @rule(at=AT, success=st.integers(0, 3), ranks=st.integers(1, 2))
    def complete(self, at: int, success: int, ranks: int) -> None:
        fit = [(engine, key) for engine in self.engines for key in sorted(engine.copies)]
        engine, key = fit[at % len(fit)]
        engine.end(key, success=success > 0, ranks=ranks)

    @rule(which=WHICH, luck=LUCK)
    def reset(self, which: int, luck: int) -> None:
        if luck == RARE:
            self.engines[which].reset()

    @rule(which=WHICH, luck=LUCK)
    def die(self, which: int, luck: int) -> None:
        """The engine and its workers are gone; another one takes its place."""
        if luck == RARE:
            self.engines[which].scheduler.close()
            self.engines[which].scheduler.close()
            self.engines[which] = Engine(self.config, self.agent)

    # --- the agent -------------------------------------------------------------------------

    @rule(luck=LUCK)
    def the_agent_restarts(self, luck: int) -> None:
        """Its memory is lost, what lies in tiers is not; engines and their copies go on."""
        if luck == RARE:
            self.agent = self._agent(self.agent.boot + 1)
            for engine in self.engines:
                engine.join(self.agent)

    @rule(count=st.integers(1, 4))
    def more_memory(self, count: int) -> None:
        self.agent.pool.add_slots(count)

    @rule(low=st.integers(0, 30), size=st.integers(1, 4), luck=LUCK)
    def less_memory(self, low: int, size: int, luck: int) -> None:
        table = self.agent.pool.host.table
        low, high = min(low, table.count), min(low + size, table.count)
        if luck == RARE and low < high and not table.retired[low:high].any():
            self.agent.losses += 1
            self.agent.pool.retire_slots(low, high)

    @precondition(lambda self: self.tiers)
    @rule(at=AT, mood=st.sampled_from(["willing", "willing", "slow", "broken"]))
    def a_tier_changes_its_mood(self, at: int, mood: Mood) -> None:
        self.tiers[at % len(self.tiers)].mood = mood

    @precondition(lambda self: any(tier.pending for tier in self.tiers))
    @rule()
    def all_transfers_end(self) -> None:
        for tier in self.tiers:
            for job in sorted(tier.pending):
                tier.end(job)

    @precondition(lambda self: any(tier.pending for tier in self.tiers))
    @rule(at=AT, job=AT, good=st.integers(0, 6))
    def a_transfer_ends(self, at: int, job: int, good: int) -> None:
        busy = [tier for tier in self.tiers if tier.pending]
        tier = busy[at % len(busy)]
        tier.end(sorted(tier.pending)[job % len(tier.pending)], good=good)

    # --- what always holds -----------------------------------------------------------------

    @invariant()
    def all_is_accounted_for(self) -> None:
        if hasattr(self, "agent"):
            laws.refs_are_those_of_open_transfers(self.agent, self.engines)
            laws.slots_add_up(self.agent)
            laws.every_key_leads_to_its_slot(self.agent)
            laws.every_open_job_is_a_copy(self.engines)
            laws.each_block_has_one_owner(self.engines)

    def teardown(self) -> None:
        """Once copies and transfers end, nobody waits, nothing is pinned or half written."""
        if not hasattr(self, "agent"):
            return
        for tier in self.tiers:
            tier.mood = "willing"
        for engine, live in self._fit("waiting"):
            engine.set_caps(live, DEADLINE)
        for _ in range(PATIENCE):
            self._settle()
            waiting = [engine.match(live) is None for engine, live in self._fit("waiting")]
            if not any(waiting):
                break
        else:
            raise AssertionError("a request waits for ever")
        for engine, live in self._fit(*ALIVE):
            engine.finish(live, "aborted")
        for _ in range(3):
            self._settle()
        laws.nothing_is_left(self.agent, self.engines)

    def _settle(self) -> None:
        for engine in self.engines:
            engine.step()
            for key in sorted(engine.copies):
                engine.end(key)
        for tier in self.tiers:
            for job in sorted(tier.pending):
                tier.end(job)
        for engine in self.engines:
            engine.step()


TestSessions = Sessions.TestCase
TestSessions.settings = settings(stateful_step_count=40)
