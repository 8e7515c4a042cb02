"""What a scheduling step waits for the agent is bounded by the hook deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from tests.unit.client.fake_agent import FakeAgent

from kvoffload_api.wire.messages import (
    Alloc,
    AllocReply,
    Complete,
    Match,
    MatchReply,
    Plan,
    Step,
    StepReply,
)
from kvoffload_client import ScheduledRequest, SchedulerSession, StepInput

Make = Callable[[], SchedulerSession]


def plan(job: int, handle: int, blocks: list[int]) -> Plan:
    zeros = np.zeros(len(blocks), dtype="<u8").tobytes()
    column = np.array(blocks, dtype="<i8").tobytes()
    return Plan(job, handle, column, zeros, zeros, [len(blocks)], [4096])


def ready(make: Make) -> SchedulerSession:
    session = make()
    assert session.wait_ready(timeout_seconds=10)
    return session


def request(session: SchedulerSession) -> int:
    return session.new_request(
        request_id="r", num_tokens=64, num_prompt_tokens=64, hashes=[b"h" * 32] * 4
    )


def test_match_says_ask_later_three_times_then_zero(agent: FakeAgent, session: Make) -> None:
    scheduler = ready(session)
    handle = request(scheduler)
    answers = []
    for _ in range(4):
        begun = time.monotonic()
        answers.append(scheduler.match(handle, computed=0).tokens)
        assert time.monotonic() - begun < 0.5
        scheduler.step(StepInput())
    assert answers == [None, None, None, 0]
    assert agent.count(Match) == 1


def test_hooks_of_one_step_share_one_deadline(agent: FakeAgent, session: Make) -> None:
    scheduler = ready(session)
    handles = [request(scheduler) for _ in range(20)]
    begun = time.monotonic()
    assert all(scheduler.match(handle, computed=0).tokens is None for handle in handles)
    scheduler.step(StepInput())
    assert time.monotonic() - begun < 10 * 0.05


def test_an_answer_that_came_after_the_deadline_is_used_next_time(
    agent: FakeAgent, session: Make
) -> None:
    scheduler = ready(session)
    handle = request(scheduler)
    assert scheduler.match(handle, computed=0).tokens is None
    question = agent.expect(Match)
    agent.peer("scheduler").send(MatchReply(question.seq, 48, True, "load.maxTokens", "request"))
    agent.answers[Step] = lambda step: StepReply(step.seq, [], [], False)
    scheduler.step(StepInput())
    outcome = scheduler.match(handle, computed=0)
    assert (outcome.tokens, outcome.limited_by, outcome.policy) == (48, "load.maxTokens", "request")
    assert agent.count(Match) == 1


def test_a_prefetched_answer_costs_no_second_lookup(agent: FakeAgent, session: Make) -> None:
    agent.answers[Match] = lambda match: MatchReply(match.seq, 32, True)
    scheduler = ready(session)
    handle = request(scheduler)
    scheduler.prefetch(handle, computed=0)
    assert scheduler.match(handle, computed=0).tokens == 32
    assert agent.count(Match) == 1


def test_an_answer_whose_lease_is_over_is_asked_for_again(agent: FakeAgent, session: Make) -> None:
    agent.answers[Match] = lambda match: MatchReply(match.seq, 32, True)
    agent.answers[Step] = lambda step: StepReply(step.seq, [], [], False)
    scheduler = ready(session)
    handle = request(scheduler)
    scheduler.prefetch(handle, computed=0)
    for _ in range(2):
        scheduler.step(StepInput())
    assert scheduler.match(handle, computed=0).tokens == 32
    assert agent.count(Match) == 2


def test_stores_that_miss_the_deadline_are_skipped_and_reported_failed(
    agent: FakeAgent, session: Make
) -> None:
    scheduler = ready(session)
    handle = request(scheduler)
    step = StepInput(
        requests=[
            ScheduledRequest(
                handle=handle, computed=0, scheduled=64, blocks=[[1, 2, 3, 4]], new=True
            )
        ]
    )
    assert scheduler.step(step).stores == ()
    question = agent.expect(Step)
    agent.peer("scheduler").send(StepReply(question.seq, [plan(5, handle, [1, 2])], [], True))
    assert agent.expect(Complete).failed == [5]


def test_a_plan_that_comes_after_the_hook_deadline_is_loaded_by_a_later_step(
    agent: FakeAgent, session: Make
) -> None:
    scheduler = ready(session)
    handle = request(scheduler)
    scheduler.alloc(handle, external_tokens=48, blocks=[[1, 2, 3, 4]])
    first = scheduler.step(StepInput())
    assert (first.loads, first.failed_loads, first.busy) == ((), (), True)
    question = agent.expect(Alloc)
    agent.answers[Step] = lambda step: StepReply(step.seq, [], [], False)
    agent.peer("scheduler").send(AllocReply(question.seq, plan(9, handle, [1, 2, 3]), 2.0))
    second = scheduler.step(StepInput())
    assert [(job.key.job, job.handle, job.deadline_seconds) for job in second.loads] == [
        (9, handle, 2.0)
    ]
    assert not second.failed_loads


def test_an_accepted_load_for_which_no_plan_comes_is_reported_failed(
    agent: FakeAgent, session: Make
) -> None:
    agent.answers[Alloc] = lambda alloc: AllocReply(alloc.seq, None)
    agent.answers[Step] = lambda step: StepReply(step.seq, [], [], False)
    scheduler = ready(session)
    handle = request(scheduler)
    scheduler.alloc(handle, external_tokens=48, blocks=[[1, 2, 3, 4]])
    outcome = scheduler.step(StepInput())
    assert (outcome.loads, outcome.failed_loads) == ((), (handle,))


def test_a_load_of_a_request_that_ended_is_given_back(agent: FakeAgent, session: Make) -> None:
    scheduler = ready(session)
    handle = request(scheduler)
    scheduler.alloc(handle, external_tokens=48, blocks=[[1, 2, 3, 4]])
    scheduler.step(StepInput())
    scheduler.finish(handle, status="aborted", computed=0)
    assert scheduler.step(StepInput(finished=[handle])).failed_loads == (handle,)
    question = agent.expect(Alloc)
    agent.peer("scheduler").send(AllocReply(question.seq, plan(9, handle, [1, 2, 3]), 2.0))
    assert agent.expect(Complete).failed == [9]
