"""An engine that is told to leave and keeps its mappings is disconnected, accounted and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer

from kvoffload_agent.server.stuck import STUCK_SECONDS


@pytest.mark.long
def test_what_it_keeps_is_stuck_until_its_connection_ends(
    agent: Agent, connect: Callable[[], Peer]
) -> None:
    scheduler, worker = connect(), connect()
    scheduler.open()
    worker.join()
    held = sum(info.bytes for info in worker.map_one().segments)
    assert agent.state()["memory"]["stuck"] == {"bytes": 0, "pods": []}
    scheduler.close()
    assert worker.closed_by_agent(), "it is asked to leave"
    seconds = eventually(
        lambda: agent.state()["memory"]["stuck"]["bytes"],
        what="stuck memory",
        deadline_seconds=2 * STUCK_SECONDS,
    )
    assert seconds > STUCK_SECONDS / 2
    assert agent.state()["memory"]["stuck"] == {"bytes": held, "pods": ["team-a/engine-a"]}
    assert agent.state()["memory"]["mapped"] >= held
    worker.close()
    eventually(lambda: not agent.sessions(), what="the end of its session")
    assert agent.state()["memory"]["stuck"] == {"bytes": 0, "pods": []}
