"""Sending never waits for the agent, and what cannot be sent at once is sent whole later."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.unit.client.fake_agent import FakeAgent, eventually

from kvoffload_api.wire.messages import Hello, NewRequest
from kvoffload_client import SchedulerSession

Make = Callable[[], SchedulerSession]

# Larger than any socket's buffer.
HASHES = b"h" * (8 * 1024 * 1024)


def add(session: SchedulerSession, name: str) -> int:
    return session.new_request(
        request_id=name, num_tokens=16, num_prompt_tokens=16, hashes=[HASHES]
    )


def test_what_the_agent_does_not_take_yet_is_sent_whole_when_it_does(
    agent: FakeAgent, session: Make
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    agent.hearing.clear()
    begun = time.monotonic()
    for number in range(4):
        add(one, str(number))
    assert time.monotonic() - begun < 5, "four copies of 8 MiB, no wait for the peer"
    agent.hearing.set()
    last = agent.expect(NewRequest, count=4)
    assert (last.request_id, last.hashes) == ("3", HASHES)
    assert one.ready


def test_a_message_over_the_protocols_limit_is_left_out_alone(
    agent: FakeAgent, session: Make
) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    huge = one.new_request(
        request_id="huge", num_tokens=16, num_prompt_tokens=16, hashes=[HASHES] * 3
    )
    assert one.match(huge, computed=0).tokens == 0
    add(one, "next")
    assert agent.expect(NewRequest).request_id == "next"
    assert agent.count(Hello) == 1


def test_an_agent_that_takes_nothing_any_more_is_given_up(agent: FakeAgent, session: Make) -> None:
    one = session()
    assert one.wait_ready(timeout_seconds=10)
    agent.hearing.clear()
    for number in range(12):
        add(one, str(number))
    eventually(lambda: not one.ready)
    assert one.match(add(one, "after"), computed=0).tokens == 0
