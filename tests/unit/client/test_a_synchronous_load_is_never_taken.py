"""The client takes plans when they come, maybe steps later: it can't load before a forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.client.fake_agent import FakeAgent

from kvoffload_api.wire.messages import Match, MatchReply, Register
from kvoffload_client import SchedulerSession


@pytest.mark.parametrize(("load_async", "tokens"), [(True, 32), (False, 0)])
def test_a_hit_that_is_offered_within_the_step_is_computed_instead(
    agent: FakeAgent, session: Callable[[], SchedulerSession], tokens: int, *, load_async: bool
) -> None:
    agent.answers[Match] = lambda match: MatchReply(match.seq, 32, load_async)
    scheduler = session()
    assert scheduler.wait_ready(timeout_seconds=10)
    handle = scheduler.new_request(
        request_id="r", num_tokens=64, num_prompt_tokens=64, hashes=[b"h" * 32] * 4
    )
    answers = [scheduler.match(handle, computed=0).tokens for _ in range(4)]
    assert next(answer for answer in answers if answer is not None) == tokens


def test_the_client_registers_no_budget_for_synchronous_loads(
    agent: FakeAgent, session: Callable[[], SchedulerSession]
) -> None:
    assert session().wait_ready(timeout_seconds=10)
    assert agent.expect(Register).sync_load_budget_bytes == 0
