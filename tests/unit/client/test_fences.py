"""The session flushes what must be flushed, with the agent and without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tests.unit.client.fake_agent import FakeAgent, eventually

from kvoffload_api.wire.messages import Alloc, AllocReply, Plan, Step, StepReply
from kvoffload_client import JobKey, ScheduledRequest, SchedulerSession, StepInput, StepOutcome

Make = Callable[[], SchedulerSession]


def plan(job: int, handle: int, blocks: list[int]) -> Plan:
    zeros = np.zeros(len(blocks), dtype="<u8").tobytes()
    column = np.array(blocks, dtype="<i8").tobytes()
    return Plan(job, handle, column, zeros, zeros, [len(blocks)], [4096])


class Scene:
    """A session whose steps store what ``stores`` holds; request 1 has stored blocks 1 and 2."""

    def __init__(self, agent: FakeAgent, make: Make) -> None:
        self.agent = agent
        self.stores: list[Plan] = []
        agent.answers[Step] = self.answer
        self.session = make()
        assert self.session.wait_ready(timeout_seconds=10)
        self.first = self.request()
        self.stores = [plan(5, self.first, [1, 2])]
        outcome = self.step(self.scheduled(self.first, [1, 2]))
        assert [job.key.job for job in outcome.stores] == [5]
        assert outcome.flush == frozenset()
        self.key = JobKey(agent.boot_id, agent.session, 5)

    def answer(self, step: Step) -> StepReply:
        stores, self.stores = self.stores, []
        return StepReply(step.seq, stores, [], False)

    def request(self) -> int:
        return self.session.new_request(
            request_id="r", num_tokens=32, num_prompt_tokens=32, hashes=[b"h" * 32] * 2
        )

    def scheduled(self, handle: int, blocks: list[int], computed: int = 0) -> ScheduledRequest:
        return ScheduledRequest(
            handle=handle, computed=computed, scheduled=32, blocks=[blocks], new=True
        )

    def step(
        self,
        *requests: ScheduledRequest,
        finished: Sequence[int] = (),
        preempted: Sequence[int] = (),
    ) -> StepOutcome:
        return self.session.step(
            StepInput(requests=requests, finished=finished, preempted=preempted)
        )


def test_a_block_in_use_again_is_flushed(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    scene.step(finished=[scene.first])
    second = scene.request()
    assert scene.step(scene.scheduled(second, [2, 3])).flush == {scene.key}


def test_a_shared_prefix_is_only_read_and_not_flushed(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    scene.step(finished=[scene.first])
    second = scene.request()
    assert scene.step(scene.scheduled(second, [1, 2, 3], computed=32)).flush == frozenset()


def test_a_job_that_has_ended_is_not_flushed(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    scene.session.complete([scene.key])
    assert scene.step(scene.scheduled(scene.request(), [1, 2])).flush == frozenset()


def test_the_destination_of_a_load_is_flushed_before_the_load(
    agent: FakeAgent, session: Make
) -> None:
    scene = Scene(agent, session)
    agent.answers[Alloc] = lambda m: AllocReply(m.seq, plan(6, m.handle, [2, 3]), 1.0)
    second = scene.request()
    scene.session.alloc(second, external_tokens=32, blocks=[[2, 3]])
    outcome = scene.step()
    assert outcome.flush == {scene.key}
    assert [job.key.job for job in outcome.loads] == [6]


def test_a_preempted_request_is_flushed(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    assert scene.step(preempted=[scene.first]).flush == {scene.key}


def test_a_last_store_of_blocks_that_this_step_writes_is_flushed_in_this_step(
    agent: FakeAgent, session: Make
) -> None:
    scene = Scene(agent, session)
    second = scene.request()
    scene.stores = [plan(7, scene.first, [3])]
    last = JobKey(agent.boot_id, agent.session, 7)
    outcome = scene.step(scene.scheduled(second, [3, 4]), finished=[scene.first])
    assert outcome.flush == {last}


def test_a_reset_flushes_everything(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    scene.session.reset()
    assert scene.step().flush == {scene.key}


def test_fences_hold_when_the_agent_is_gone(agent: FakeAgent, session: Make) -> None:
    scene = Scene(agent, session)
    agent.die()
    eventually(lambda: not scene.session.ready)
    second = scene.request()
    outcome = scene.step(scene.scheduled(second, [2, 3]))
    assert outcome.flush == {scene.key}
    assert not outcome.stores
