"""A policy that asks for less takes memory back from engines that are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer

from kvoffload_api.wire.messages import Complete, Map, Mapped, Unmap, Unmapped

MIB = 1 << 20

POLICY = """
apiVersion: kvoffload.io/v1alpha1
kind: ClusterKVOffloadPolicy
metadata: {name: default}
spec:
  nodeBudget: {hostMemory: %s}
"""


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[Agent]:
    agent = Agent(folder)
    agent.write("default.yaml", POLICY % "64Mi")
    with agent:
        yield agent


def test_segments_are_unmapped_and_closed_and_what_is_being_written_waits(
    agent: Agent, connect: Callable[[], Peer]
) -> None:
    scheduler, worker = connect(), connect()
    scheduler.open()
    worker.join()
    while not agent.sessions()[0]["ready"]:
        worker.map_some()
    # Every slot is being written, so more is mapped until the budget is used.
    plans = []
    for handle in range(200):
        if (plan := scheduler.store(handle=handle, blocks=200, seed=bytes([handle]))) is not None:
            plans.append(plan)
        worker.map_some()
        if agent.state()["memory"]["mapped"] > 48 * MIB:
            break
    held = agent.state()["memory"]["mapped"]
    assert held > 48 * MIB
    agent.write("default.yaml", POLICY % "16Mi")
    eventually(lambda: agent.partition()["leaving_segments"] > 0, what="segments that leave")
    worker.send(Complete(done=[plan.job for plan in plans], failed=[]))
    given = []
    while agent.state()["memory"]["mapped"] > 16 * MIB:
        message = worker.receive()
        if isinstance(message, Map):
            worker.send(Mapped(segments=[info.segment for info in message.segments]))
        elif isinstance(message, Unmap):
            given += message.segments
            worker.send(Unmapped(segments=message.segments))
            wait_for_less(agent, held)
            held = agent.state()["memory"]["mapped"]
    assert len(given) == len(set(given)) > 0
    assert agent.sessions()[0]["ready"]
    memory = agent.state()["memory"]
    assert memory["mapped"] <= memory["requested"] == 16 * MIB


def wait_for_less(agent: Agent, held: int) -> None:
    eventually(lambda: agent.state()["memory"]["mapped"] < held, what="the return of a segment")
