"""An engine goes on without its agent, and takes part again when it is back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.client.fake_agent import FakeAgent, eventually

from kvoffload_api.wire.framing import HEADER
from kvoffload_api.wire.messages import (
    Append,
    Finish,
    Hello,
    Match,
    MatchReply,
    NewRequest,
    Refused,
    Register,
    Step,
    StepReply,
)
from kvoffload_client import ClientSettings, ScheduledRequest, SchedulerSession, StepInput

Make = Callable[[], SchedulerSession]


def add(session: SchedulerSession) -> int:
    return session.new_request(
        request_id="r", num_tokens=32, num_prompt_tokens=32, hashes=[b"a" * 32, b"b" * 32]
    )


def scheduled(handle: int, **rest: bool) -> ScheduledRequest:
    return ScheduledRequest(handle=handle, computed=0, scheduled=32, blocks=[[1, 2]], **rest)


def test_without_an_agent_nothing_is_loaded_or_stored_or_waited_for(session: Make) -> None:
    alone = session()
    handle = add(alone)
    assert alone.match(handle, computed=0).tokens == 0
    alone.alloc(handle, external_tokens=16, blocks=[[1, 2]])
    outcome = alone.step(StepInput(requests=[scheduled(handle, new=True)]))
    assert (outcome.loads, outcome.stores, outcome.failed_loads) == ((), (), (handle,))
    alone.append(handle, num_tokens=48, hashes=[b"c" * 32])
    alone.finish(handle, status="stopped", computed=47)
    assert not alone.reset()


def test_a_load_in_flight_fails_when_the_agent_goes(agent: FakeAgent, session: Make) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    handle = add(one)
    one.alloc(handle, external_tokens=16, blocks=[[1, 2]])
    assert one.step(StepInput()).failed_loads == ()
    agent.die()
    eventually(lambda: not one.ready)
    assert one.step(StepInput()).failed_loads == (handle,)
    assert one.step(StepInput()).failed_loads == ()


def test_a_waiting_request_is_announced_to_the_next_agent_with_all_its_hashes(
    agent: FakeAgent, session: Make
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    handle = add(one)
    agent.expect(NewRequest)
    one.append(handle, num_tokens=48, hashes=[b"c" * 32])
    agent.die()
    eventually(lambda: not one.ready)
    agent.answers[Match] = lambda match: MatchReply(match.seq, 16, True)
    agent.come_back()
    assert one.wait_ready(timeout_seconds=10)
    assert one.match(handle, computed=0).tokens == 16
    again = agent.expect(NewRequest)
    assert (again.handle, again.num_tokens) == (handle, 48)
    assert again.hashes == b"a" * 32 + b"b" * 32 + b"c" * 32


def test_a_running_request_is_left_out_until_it_is_scheduled_anew(
    agent: FakeAgent, session: Make
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    handle = add(one)
    one.step(StepInput(requests=[scheduled(handle, new=True)]))
    agent.die()
    eventually(lambda: not one.ready)
    agent.answers[Step] = lambda step: StepReply(step.seq, [], [], False)
    agent.come_back()
    assert one.wait_ready(timeout_seconds=10)
    one.step(StepInput(requests=[scheduled(handle)]))
    assert agent.expect(Step).handles == b""
    assert agent.count(NewRequest) == 0
    one.step(StepInput(requests=[scheduled(handle, resumed=True)]))
    assert agent.expect(Step, count=2).resumed == [handle]
    assert agent.count(NewRequest) == 1


def test_an_outage_is_one_line_and_its_end_another(
    agent: FakeAgent, session: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    with caplog.at_level(logging.WARNING):
        agent.die()
        eventually(lambda: not one.ready)
        agent.come_back()
        assert one.wait_ready(timeout_seconds=10)
        # The connection's thread logs after it has told the session.
        eventually(lambda: len(caplog.records) > 1)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "no node agent at" in lines[0]
    assert "is back" in lines[1]


def test_a_frame_of_another_boot_ends_the_connection(agent: FakeAgent, session: Make) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    agent.peer("scheduler").send(MatchReply(1, 16, True), boot_id=agent.boot_id + 1)
    eventually(lambda: agent.count(Hello) == 2)


@pytest.mark.parametrize(
    "garbage",
    [HEADER.pack(0, 7), HEADER.pack(2**32 - 1, 7), HEADER.pack(3, 7) + b"\xc1\xc1\xc1"],
    ids=["empty", "too long", "no message"],
)
def test_bytes_that_are_no_frame_end_the_connection(
    agent: FakeAgent, session: Make, garbage: bytes
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    agent.peer("scheduler").send_bytes(garbage)
    eventually(lambda: agent.count(Hello) == 2)
    assert one.wait_ready(timeout_seconds=10)


def test_a_refusal_of_one_question_leaves_the_session_alone(
    agent: FakeAgent, session: Make
) -> None:
    agent.answers[Match] = lambda match: Refused(match.seq, "internal", "no")
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    assert one.match(add(one), computed=0).tokens == 0
    assert one.ready


def test_a_refused_layout_is_said_and_tried_again(
    agent: FakeAgent, session: Make, caplog: pytest.LogCaptureFixture
) -> None:
    agent.answers[Register] = lambda register: Refused(-1, "layout", "use 16 tokens a block")
    session()
    eventually(lambda: agent.count(Register) == 2)
    assert "use 16 tokens a block" in caplog.text


def test_the_token_is_read_at_every_connect(
    agent: FakeAgent, settings: ClientSettings, layout: object, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    changed = ClientSettings(
        session_key="k", socket_path=settings.socket_path, token_path=str(token)
    )
    one = SchedulerSession(settings=changed, layout=layout)  # type: ignore[arg-type]
    one.start()
    assert agent.expect(Hello).token == "one"
    token.write_text("two\n")
    agent.peer("scheduler").close()
    assert agent.expect(Hello, count=2).token == "two"
    one.close()


def test_growth_without_hashes_is_told_with_the_end_alone(agent: FakeAgent, session: Make) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    handle = add(one)
    for tokens in range(33, 40):
        one.append(handle, num_tokens=tokens, hashes=[])
    one.finish(handle, status="stopped", computed=38)
    agent.expect(Finish)
    assert agent.count(Append) == 1
    assert agent.expect(Append).num_tokens == 39
