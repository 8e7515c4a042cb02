"""An agent that is asked to stop plans nothing more and lets running loads end."""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer, RefusedError, int64

from kvoffload_api.wire.messages import Alloc, AllocReply, Complete, Match, MatchReply, Welcome

BLOCKS = 4
TOKENS = 16 * BLOCKS
DRAIN_SECONDS = 3.0


@pytest.fixture
def agent() -> Iterator[Agent]:
    arguments = ["--host-memory", "64Mi", "--drain-seconds", str(DRAIN_SECONDS)]
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with (
        tempfile.TemporaryDirectory(prefix="kvo") as directory,
        Agent(Path(directory), arguments=arguments) as running,
    ):
        yield running


@pytest.fixture
def peers(agent: Agent) -> Iterator[tuple[Peer, Peer]]:
    """Scheduler and worker of an engine that has stored a prompt."""
    scheduler, worker = Peer(agent.socket), Peer(agent.socket)
    scheduler.open()
    worker.join()
    worker.map_one()
    eventually(lambda: agent.sessions()[0]["ready"], what="a ready session")
    plan = scheduler.store(handle=1, blocks=BLOCKS)
    assert plan is not None
    worker.send(Complete(done=[plan.job], failed=[]))
    yield scheduler, worker
    scheduler.close()
    worker.close()


def match(scheduler: Peer, handle: int) -> int | None:
    scheduler.announce(handle=handle, blocks=BLOCKS, more=1)
    return scheduler.ask(Match(seq=handle, handle=handle, computed=0), MatchReply).tokens


def load(scheduler: Peer) -> int:
    """Begin a load of the stored prompt; return its job."""
    handles = itertools.count(100)
    eventually(lambda: match(scheduler, next(handles)) == TOKENS, what="the stored prompt is found")
    handle = next(handles) - 1
    blocks = int64(*range(11, 11 + BLOCKS), 20)
    reply = scheduler.ask(
        Alloc(seq=500, handle=handle, external_tokens=TOKENS, blocks=[blocks]), AllocReply
    )
    assert reply.load is not None
    return reply.load.job


def ask_to_stop(agent: Agent) -> None:
    os.kill(agent.process.popen.pid, signal.SIGTERM)
    eventually(lambda: "agent stops" in agent.log(), what="it heard of it")


def ended(agent: Agent) -> bool:
    return not agent.process.running


def test_b52_it_stops_new_loads_and_finishes_running_ones(
    agent: Agent, peers: tuple[Peer, Peer]
) -> None:
    scheduler, worker = peers
    job = load(scheduler)
    ask_to_stop(agent)
    assert match(scheduler, 3) == 0
    late = Peer(agent.socket)
    with pytest.raises(RefusedError, match="the agent stops"):
        late.expect(Welcome)
    late.close()
    assert not ended(agent)
    worker.send(Complete(done=[job], failed=[]))
    seconds = eventually(lambda: ended(agent), what="its end")
    assert seconds < DRAIN_SECONDS
    assert agent.process.popen.returncode == 0
    assert '"before": 1' in agent.log()
    assert '"left": 0' in agent.log()


def test_a_load_that_never_ends_does_not_keep_it(agent: Agent, peers: tuple[Peer, Peer]) -> None:
    scheduler, _ = peers
    load(scheduler)
    began = time.monotonic()
    ask_to_stop(agent)
    eventually(lambda: ended(agent), what="its end")
    assert time.monotonic() - began >= DRAIN_SECONDS
    assert agent.process.popen.returncode == 0


def test_a_second_signal_ends_it_at_once(agent: Agent, peers: tuple[Peer, Peer]) -> None:
    scheduler, _ = peers
    load(scheduler)
    began = time.monotonic()
    ask_to_stop(agent)
    os.kill(agent.process.popen.pid, signal.SIGTERM)
    eventually(lambda: ended(agent), what="its end")
    assert time.monotonic() - began < DRAIN_SECONDS


def test_without_loads_it_ends_at_once(agent: Agent, peers: tuple[Peer, Peer]) -> None:
    began = time.monotonic()
    ask_to_stop(agent)
    eventually(lambda: ended(agent), what="its end")
    assert time.monotonic() - began < DRAIN_SECONDS
