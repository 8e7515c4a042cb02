"""Chunks on the node's disk, as engines, policies and restarts of the real agent meet them."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.harness.installation import read_debug_state
from tests.integration.engine.conftest import Agent, Engines, eventually

PROMPT = 330
STORED = 320
BLOCKS = STORED // 16


class DiskAgent(Agent):
    """An agent with a disk, and a policy of team-a that gives it bytes there."""

    def __init__(self, directory: Path, *, disk: Path) -> None:
        self.disk = disk
        super().__init__(directory, host_memory="256Mi", arguments=["--disk", str(disk)])
        self.allow("64Mi")

    def allow(self, capacity: str | None, **fields: str) -> None:
        """Let team-a's engines use so much disk, None: none; wait until that is in force."""
        before = self.version()
        spec = {"localDisk": f"{{capacity: {capacity}}}"} if capacity else {"priority": "1"}
        spec.update(fields)
        text = ", ".join(f"{name}: {value}" for name, value in spec.items())
        self.write(
            "team-a-disk.yaml",
            f"""\
            apiVersion: kvoffload.io/v1alpha1
            kind: KVOffloadPolicy
            metadata: {{name: disk, namespace: team-a}}
            spec: {{{text}}}
            """,
        )
        eventually(lambda: self.version() > before, what="the policy is in force")

    def version(self) -> int:
        """Counts changes of its policies that took effect."""
        return int(read_debug_state(self.debug_address)["configuration"]["version"])

    def figures(self) -> dict[str, Any]:
        """What ``/debug/state`` says of the disk."""
        found: dict[str, Any] = read_debug_state(self.debug_address)["disk"]
        return found

    def stored(self, chunks: int) -> None:
        """Wait until so many chunks are on the disk."""
        eventually(lambda: self.figures()["chunks"] == chunks, what=f"{chunks} chunks on disk")

    def killed_and_started(self) -> None:
        """SIGKILL it, start it again and wait until it adopted what lies there."""
        self.process.kill()
        self.start_again()
        eventually(lambda: self.figures()["state"] == "ready", what="adoption")

    @property
    def files(self) -> list[Path]:
        return sorted(self.disk.glob("*/*.pack"))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "chunks"


@contextlib.contextmanager
def running(disk: Path) -> Iterator[DiskAgent]:
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as folder:
        made = DiskAgent(Path(folder), disk=disk)
        try:
            yield made
        finally:
            made.process.stop()


@pytest.fixture
def agent(disk: Path) -> Iterator[DiskAgent]:
    with running(disk) as made:
        yield made


def serve(engine: Engine, name: str, *, prefix: int = 1) -> int:
    """Serve a prompt on an empty device; return the tokens that were loaded."""
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.run([make_request(name, prefix=prefix, num_prompt_tokens=PROMPT)])
    assert engine.stats.mismatches == 0
    return engine.stats.loaded_tokens - before


def test_what_was_stored_before_a_kill_is_loaded_after_it_byte_for_byte(
    agent: DiskAgent, engines: Engines
) -> None:
    serve(engines(), "stores")
    agent.stored(BLOCKS)
    agent.killed_and_started()
    assert agent.figures()["chunks_adopted"] == BLOCKS
    engine = engines()
    assert serve(engine, "loads") == STORED
    found = agent.figures()
    assert found["chunks_loaded"] == BLOCKS
    assert 0 < found["used"] <= found["capacity"]
    # It came to host memory by the way: nothing is read twice.
    assert serve(engine, "again") == STORED
    assert agent.figures()["chunks_loaded"] == BLOCKS
    with urllib.request.urlopen(f"http://{agent.debug_address}/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert f'kvoffload_disk_moved_chunks_total{{event="loaded"}} {BLOCKS}.0' in metrics
    assert "kvoffload_disk_usable 1.0" in metrics
    planned = re.findall(r'kvoffload_planned_load_tokens_total{.*source="(\w+)"} (\S+)', metrics)
    assert dict(planned) == {"disk": f"{STORED}.0", "host": f"{STORED}.0"}


@pytest.mark.parametrize("damage", ["flipped", "truncated", "replaced"])
def test_a_file_that_was_damaged_while_the_agent_was_gone_is_not_loaded(
    agent: DiskAgent, engines: Engines, damage: str
) -> None:
    serve(engines(), "stores")
    agent.stored(BLOCKS)
    agent.process.kill()
    for path in agent.files:
        data = bytearray(path.read_bytes())
        if damage == "flipped":
            data[-1] ^= 1
            data[len(data) // 2] ^= 0x80
        path.write_bytes(data[: len(data) // 2] if damage == "truncated" else data)
        if damage == "replaced":
            path.write_bytes(b"somebody else's" * 1000)
    agent.start_again()
    eventually(lambda: agent.figures()["state"] == "ready", what="adoption")
    engine = engines()
    assert serve(engine, "computes") < STORED
    eventually(lambda: sum(agent.figures()["files_rejected"].values()), what="it is counted")
    agent.stored(BLOCKS)  # computed anew, and stored anew


def test_policy_decides_who_stores_on_disk_and_who_loads_from_it(
    agent: DiskAgent, engines: Engines
) -> None:
    agent.allow("64Mi", store="{tiers: []}")
    engine = engines()
    serve(engine, "stores no further than host memory", prefix=1)
    assert agent.figures()["chunks"] == 0
    agent.allow("64Mi", load="{tiers: []}")
    serve(engine, "stores", prefix=2)
    agent.stored(BLOCKS)
    agent.killed_and_started()
    assert serve(engines(), "may not load", prefix=2) == 0
    assert agent.figures()["chunks_loaded"] == 0


def test_a_policy_without_disk_takes_back_what_was_there_and_others_have_none(
    agent: DiskAgent, engines: Engines
) -> None:
    engine, other = engines(), engines(namespace="team-b")
    serve(engine, "stores")
    serve(other, "stores")
    agent.stored(BLOCKS)
    assert len({path.parent for path in agent.files}) == 1
    agent.allow(None)
    eventually(lambda: not agent.files, what="the files are removed")
    assert serve(engine, "loads from host memory") == STORED


def test_a_lowered_capacity_is_followed(agent: DiskAgent, engines: Engines) -> None:
    engine = engines()
    for number in range(4):
        serve(engine, f"stores {number}", prefix=number)
        agent.stored(BLOCKS * (number + 1))
    used = agent.figures()["used"]
    agent.allow("1Mi")
    eventually(lambda: agent.figures()["used"] <= 1 << 20 < used, what="it shrinks")
    assert sum(path.stat().st_blocks for path in agent.files) * 512 <= 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    at = tmp_path / "small"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", at], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.mark.cgroup
def test_a_full_disk_costs_nothing_but_what_it_would_have_kept(tmp_path: Path, small: Path) -> None:
    ballast = small / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small).free - (64 << 10)))
    with running(small / "chunks") as agent:
        made = Engines(agent, tmp_path)
        engine = made()
        serve(engine, "stores")
        assert serve(engine, "loads from host memory") == STORED
        eventually(lambda: agent.figures()["chunks_not_stored"], what="it says why")
        assert agent.files == []
        ballast.unlink()
        eventually(lambda: agent.figures()["available"] > 2 << 20, what="it sees the room")
        serve(engine, "stores anew", prefix=2)
        agent.stored(BLOCKS)
        made.close()


def test_a_directory_that_another_agent_uses_is_taken_once_that_one_is_gone(
    agent: DiskAgent,
) -> None:
    eventually(lambda: agent.figures()["state"] == "ready", what="the first one has it")
    with running(agent.disk) as second:
        eventually(
            lambda: "another agent" in second.figures()["limited_by"], what="it is told apart"
        )
        agent.process.kill()
        eventually(lambda: second.figures()["state"] == "ready", what="the second one has it")
