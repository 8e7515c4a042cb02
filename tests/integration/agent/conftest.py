"""A standalone agent process, and peers that speak the wire themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def agent(folder: Path) -> Iterator[Agent]:
    """Run one agent for a module: each test's engines have a partition of their own."""
    with Agent(folder, arguments=["--host-memory", "64Mi"]) as running:
        yield running
        assert running.process.running, running.log()


@pytest.fixture
def connect(agent: Agent, request: pytest.FixtureRequest) -> Iterator[Callable[[], Peer]]:
    """Make connections of an engine named after the test; they are closed with it."""
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(agent.socket, identity=request.node.name.encode()))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
    eventually(lambda: not agent.sessions(), what="the end of this test's sessions")
