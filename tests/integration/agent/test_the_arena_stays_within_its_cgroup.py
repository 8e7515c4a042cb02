"""A real memory cgroup of the v1 controller around a real agent: nothing is ever OOM-killed."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer

pytestmark = pytest.mark.cgroup

MIB = 1 << 20
LIMIT = 512 * MIB
CONTROLLER = Path("/sys/fs/cgroup/memory")

POLICY = """
apiVersion: kvoffload.io/v1alpha1
kind: ClusterKVOffloadPolicy
metadata: {name: default}
spec:
  nodeBudget: {hostMemory: 2Gi}
"""


class Group:
    """A memory cgroup of our own with a limit."""

    def __init__(self, limit: int) -> None:
        self.path = CONTROLLER / f"kvoffload-test-{secrets.token_hex(4)}"
        self.path.mkdir()
        self.limit(limit)

    def limit(self, value: int) -> None:
        (self.path / "memory.limit_in_bytes").write_text(str(value))

    def enter(self) -> list[str]:
        """Return a command prefix that moves itself in."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def figure(self, name: str, key: str) -> int:
        for line in (self.path / name).read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split()[1])
        raise KeyError(key)

    @property
    def usage(self) -> int:
        return int((self.path / "memory.usage_in_bytes").read_text())

    @property
    def oom_kills(self) -> int:
        return self.figure("memory.oom_control", "oom_kill")

    def remove(self) -> None:
        until = time.monotonic() + 10
        while True:
            try:
                self.path.rmdir()
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
            else:
                return


@pytest.fixture
def group() -> Iterator[Group]:
    assert CONTROLLER.is_dir(), "these tests need the v1 memory controller and root"
    made = Group(LIMIT)
    yield made
    made.remove()


@pytest.fixture
def confined(group: Group) -> Iterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        agent = Agent(Path(directory), wrapper=group.enter())
        agent.write("default.yaml", POLICY)
        with agent:
            yield agent


class Hungry:
    """An engine with rows of 1 MiB that stores until the agent has no memory left to give."""

    def __init__(self, agent: Agent, *, token: str = "token-a") -> None:
        self._agent = agent
        self.scheduler = Peer(agent.socket, identity=token.encode(), block_bytes=MIB)
        self.scheduler.open(key=token, token=token)
        self.worker = Peer(agent.socket, identity=token.encode(), block_bytes=MIB)
        self.worker.join(key=token, token=token)
        self._handle = 0

    def fill(self, *, until_settled_seconds: float = 2.0) -> None:
        """Map and store; end when memory has not grown for a while."""
        grown_at, mapped = time.monotonic(), 0
        while time.monotonic() < grown_at + until_settled_seconds:
            self.worker.map_some()
            self._handle += 1
            self.scheduler.store(
                handle=self._handle, blocks=16, seed=self._handle.to_bytes(4, "big")
            )
            now = self._agent.state()["memory"]["mapped"]
            if now != mapped:
                grown_at, mapped = time.monotonic(), now

    def close(self) -> None:
        self.scheduler.close()
        self.worker.close()


@pytest.fixture
def engine(confined: Agent) -> Iterator[Hungry]:
    made = Hungry(confined)
    yield made
    made.close()


def test_a_policy_of_2_gib_in_512_mib_maps_what_fits_and_says_why(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    memory = confined.state()["memory"]
    assert memory["requested"] == 2 << 30
    assert 200 * MIB < memory["mapped"] < LIMIT
    assert memory["populated"] == memory["mapped"]
    assert group.usage < LIMIT - 32 * MIB
    assert memory["refusal"] is not None
    assert "memory limit of cgroup" in memory["refusal"]["limited_by"]
    assert "bytes" in memory["refusal"]["reason"]
    assert group.oom_kills == 0
    assert confined.process.running


def test_page_cache_that_fills_the_cgroup_does_not_make_the_guard_refuse(
    group: Group, confined: Agent, engine: Hungry, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    with big.open("wb") as file:
        for _ in range(450):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    subprocess.run([*group.enter(), "cat", str(big)], stdout=subprocess.DEVNULL, check=True)
    if group.usage < LIMIT * 3 // 4:
        pytest.fail(f"the page cache did not fill: {group.usage} bytes in use")
    engine.fill()
    assert confined.state()["memory"]["mapped"] > 150 * MIB
    assert group.oom_kills == 0


def test_a_neighbour_that_grows_in_the_same_cgroup_is_left_its_share(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    code = "import time; kept = b'x' * (200 << 20); print('ready', flush=True); time.sleep(600)"
    neighbour = subprocess.Popen(
        [*group.enter(), sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "ready\n"
        engine.fill()
        assert 0 < confined.state()["memory"]["mapped"] < LIMIT - 264 * MIB
        assert neighbour.poll() is None
        assert group.oom_kills == 0
    finally:
        neighbour.kill()
        neighbour.communicate()


def test_a_limit_that_is_raised_while_the_agent_runs_is_used(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    before = confined.state()["memory"]["mapped"]
    group.limit(LIMIT + 256 * MIB)

    def grown() -> bool:
        engine.fill(until_settled_seconds=0.5)
        return bool(confined.state()["memory"]["mapped"] > before)

    eventually(grown, what="growth under the new limit")
    assert group.oom_kills == 0


def test_sigkill_leaves_no_memory_and_no_file(
    group: Group, confined: Agent, engine: Hungry
) -> None:
    engine.fill()
    held = group.usage
    assert held > 200 * MIB
    confined.process.kill()
    engine.close()
    with contextlib.suppress(FileNotFoundError):
        assert not list(Path("/dev/shm").glob("kvoffload*"))
    eventually(lambda: group.usage < 64 * MIB, what="the return of the memory")
    confined.start()
    assert confined.state()["memory"]["mapped"] == 0
