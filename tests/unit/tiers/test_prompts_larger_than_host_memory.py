"""A request whose prompt does not fit into host memory loads what fits, and waits no longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.builders import StubTier, World, full, hashes_of, sliding

from kvoffload_agent.scheduler.types import GroupConfig, MatchResult, RequestCaps
from kvoffload_agent.tiers.cascade import MAX_ROUNDS
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots

# An engine asks about a waiting request once a step.
STEP_SECONDS = 0.02


def bound(load_steps: int) -> int:
    """Steps of a round before it is firm, of all that it gets, and one that only looks."""
    return (MAX_ROUNDS + 2) * (load_steps + 1)


@dataclass
class Disk(StubTier):
    """Has every chunk; each load takes so many steps and arrives, or does not."""

    load_steps: int = 1
    success: bool = True
    _running: dict[int, int] = field(default_factory=dict)

    def lookup(self, request: int, key: Key) -> Verdict:
        return Verdict.HIT

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        self._running[job] = self.load_steps

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        self.done.append(Finished(job=job, success=True))

    def tick(self) -> None:
        for job in list(self._running):
            self._running[job] -= 1
            if self._running[job] <= 0:
                del self._running[job]
                self.done.append(Finished(job=job, success=self.success))


class Node:
    """An engine whose steps take time, above a disk that has everything."""

    def __init__(
        self,
        *groups: GroupConfig,
        tokens: int,
        slots: int,
        load_steps: int = 1,
        policy: str = "lru",
    ) -> None:
        self.disk = Disk(load_steps=load_steps)
        host = HostConfig(eviction_policy=policy)  # type: ignore[arg-type]
        self.world = World(*groups, tokens=tokens, slots=slots, tiers=[self.disk], host=host)
        self.now = 0.0

    def ask(self, handle: int) -> MatchResult:
        return self.world.engine.match(handle, computed=0, max_new_tokens=None, now=self.now)

    def step(self) -> None:
        self.world.pool.advance(self.now)
        self.world.idle()
        self.disk.tick()
        self.now += STEP_SECONDS

    def answer(self, handle: int) -> tuple[int, int]:
        """Ask in every step; return the hit and the number of steps that it took."""
        for steps in range(10_000):
            tokens = self.ask(handle).tokens
            if tokens is not None:
                return tokens, steps
            self.step()
        raise AssertionError("never answered")


def test_a_prompt_larger_than_host_memory_loads_its_first_chunks() -> None:
    node = Node(full(4), tokens=40, slots=4)
    handle = node.world.request()
    tokens, steps = node.answer(handle)
    assert tokens == 16
    assert steps <= bound(1)
    plan = node.world.alloc(handle, 16).plan
    assert plan is not None
    assert [key for _, key in plan.keys] == node.world.hashes[:4]


def test_chunks_that_were_there_before_are_kept_for_the_rest_of_the_prompt() -> None:
    node = Node(full(4), tokens=40, slots=6)
    node.world.put(0, node.world.hashes[:3])
    assert node.answer(node.world.request())[0] == 24


def test_a_prompt_that_fits_evicts_others_and_loads_whole() -> None:
    node = Node(full(4), tokens=40, slots=10)
    node.world.put(0, hashes_of(7, 10))
    tokens, steps = node.answer(node.world.request())
    assert tokens == 40
    assert steps == 1


def test_host_memory_without_a_slot_for_it_is_a_miss_at_once() -> None:
    node = Node(full(4), tokens=40, slots=2)
    node.world.put(0, hashes_of(7, 2), written=False)
    assert node.answer(node.world.request()) == (0, 0)


def test_a_window_that_does_not_fit_beside_the_rest_is_no_reason_to_wait() -> None:
    node = Node(full(4), sliding(4, 8), tokens=41, slots=5)
    tokens, steps = node.answer(node.world.request())
    assert tokens % 4 == 0
    assert steps <= bound(1)


def test_a_request_that_loads_again_may_wait_again() -> None:
    node = Node(full(4), tokens=40, slots=4)
    handle = node.world.request(RequestCaps(load_timeout_seconds=60.0))
    assert node.answer(handle)[0] == 16
    plan = node.world.alloc(handle, 16).plan
    assert plan is not None
    node.step()
    node.world.done(plan)
    node.world.idle(preempted=[handle])
    node.world.pool.host.reset(held=node.world.pool.host.table.refs[:0].astype("int64"))
    node.now += 3600.0
    assert node.ask(handle).tokens is None


def test_chunks_that_others_evict_again_and_again_are_not_waited_for_for_ever() -> None:
    node = Node(full(4), tokens=16, slots=4)
    handle = node.world.request()
    for round_ in range(MAX_ROUNDS + 1):
        assert node.ask(handle).tokens is None
        node.step()
        node.world.pool.absorb(node.world.engine.client)
        node.world.put(0, hashes_of(100 + round_, 4))
    assert node.ask(handle).tokens == 0


def test_a_tier_that_promises_what_it_cannot_load_is_not_waited_for_for_ever() -> None:
    node = Node(full(4), tokens=16, slots=8)
    node.disk.success = False
    assert node.answer(node.world.request()) == (0, MAX_ROUNDS + 1)


def test_a_chunk_that_another_evicts_is_waited_for_as_long_as_others_of_it_come() -> None:
    node = Node(full(4), tokens=12, slots=3, load_steps=3)
    node.world.put(0, node.world.hashes[:1])
    handle = node.world.request()
    assert node.ask(handle).tokens is None
    node.step()
    node.world.put(0, hashes_of(7, 1), written=False)
    assert node.ask(handle).tokens is None


@pytest.mark.parametrize("policy", ["lru", "arc"])
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    slots=st.integers(0, 40),
    load_steps=st.integers(1, 3),
    windowed=st.booleans(),
)
def test_every_lookup_is_answered_within_a_bounded_number_of_steps(
    policy: str,
    prompts: list[int],
    slots: int,
    load_steps: int,
    windowed: bool,  # noqa: FBT001
) -> None:
    groups = [full(4), sliding(4, 8)] if windowed else [full(4)]
    node = Node(*groups, tokens=4, slots=slots, load_steps=load_steps, policy=policy)
    waiting = {
        node.world.request(tokens=4 * count, hashes=hashes_of(name, count))
        for name, count in enumerate(prompts)
    }
    # They evict each other's chunks, and each waits for those of its own alone.
    for _ in range(bound(load_steps) + 1):
        waiting = {handle for handle in waiting if node.ask(handle).tokens is None}
        node.step()
    assert not waiting
    table = node.world.pool.host.table
    assert not (table.refs[: table.count] > 0).any()


@given(count=st.integers(2, 40), slots=st.integers(1, 40), load_steps=st.integers(1, 3))
def test_alone_a_request_loads_all_that_host_memory_holds(
    count: int, slots: int, load_steps: int
) -> None:
    node = Node(full(4), tokens=4 * count, slots=slots, load_steps=load_steps)
    tokens, _ = node.answer(node.world.request())
    assert tokens == 4 * min(count, slots)
