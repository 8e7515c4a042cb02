from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.client.fake_agent import FakeAgent

from kvoffload_api.wire.messages import Group
from kvoffload_client import ClientSettings, EngineLayout, SchedulerSession

BLOCK_BYTES = 4096


@pytest.fixture
def socket_path() -> Iterator[Path]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        yield Path(directory) / "agent.sock"


@pytest.fixture
def agent(socket_path: Path) -> Iterator[FakeAgent]:
    with FakeAgent(socket_path) as fake:
        yield fake


@pytest.fixture
def settings(socket_path: Path) -> ClientSettings:
    # Ten times the default: what a test measures is the rule, not the machine's load.
    return ClientSettings(
        session_key="test", socket_path=str(socket_path), hook_deadline_seconds=0.05
    )


@pytest.fixture
def layout() -> EngineLayout:
    return EngineLayout(
        identity={"model": "test"},
        groups=[Group(kind="full", tokens_per_block=16, block_bytes=BLOCK_BYTES)],
        world_size=1,
        tokens_per_hash=16,
        blocks_per_chunk=1,
        block_hash_bytes=32,
    )


@pytest.fixture
def session(
    settings: ClientSettings, layout: EngineLayout
) -> Iterator[Callable[[], SchedulerSession]]:
    """Make started sessions that end with the test."""
    made: list[SchedulerSession] = []

    def make() -> SchedulerSession:
        new = SchedulerSession(settings=settings, layout=layout)
        new.start()
        made.append(new)
        return new

    yield make
    for each in made:
        each.close()
