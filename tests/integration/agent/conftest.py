"""A standalone agent process, and peers that speak the wire themselves."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import Agent
from tests.integration.agent.wire import Peer


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        yield Path(directory)


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    with Agent(folder, arguments=["--host-memory", "64Mi"]) as running:
        yield running


@pytest.fixture
def connect(agent: Agent) -> Iterator[Callable[[], Peer]]:
    """Make connections that are closed with the test."""
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(agent.socket))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
