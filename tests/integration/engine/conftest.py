"""The real agent as a process, and reference engines in this one that it serves."""

from __future__ import annotations

import contextlib
import secrets
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.engine import Engine, EngineOptions
from tests.harness.installation import read_debug_state, wait_listening
from tests.harness.processes import Process

from kvoffload_client import ClientSettings

PROGRAM = Path(sys.executable).with_name("kvoffload-agent")
WAIT_SECONDS = 20.0

TOKENS = {"team-a": "token-of-a", "team-b": "token-of-b"}
IDENTITIES = """\
    identities:
    - {token: token-of-a, namespace: team-a, name: engine-a, labels: {app: engine}}
    - {token: token-of-b, namespace: team-b, name: engine-b, labels: {app: engine}}
    """


def eventually(condition: Callable[[], object], *, what: str) -> None:
    """Wait for another process."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {WAIT_SECONDS:.0f} s")
        time.sleep(0.02)


class Agent:
    """A standalone agent with a directory of policies."""

    def __init__(self, directory: Path, *, host_memory: str, arguments: Sequence[str] = ()) -> None:
        self.directory = directory
        self.policies = directory / "policies"
        self.policies.mkdir()
        self.socket = directory / "agent.sock"
        self._arguments = ["--host-memory", host_memory, *arguments]
        self._starts = 0
        self.debug_address = ""
        self.write("identities.yaml", IDENTITIES)
        self.process = self._start()

    def write(self, name: str, text: str) -> None:
        """Put a policy file in place, whole at once."""
        draft = self.policies / f".{name}.tmp"
        draft.write_text(textwrap.dedent(text))
        draft.rename(self.policies / name)

    def policy(self, name: str, *, namespace: str = "team-a", **load: int) -> None:
        """Write a namespaced policy with these load fields."""
        fields = ", ".join(f"{field}: {value}" for field, value in load.items())
        self.write(
            f"{namespace}-{name}.yaml",
            f"""\
            apiVersion: kvoffload.io/v1alpha1
            kind: KVOffloadPolicy
            metadata: {{name: {name}, namespace: {namespace}}}
            spec: {{load: {{{fields}}}}}
            """,
        )

    def remove(self, name: str, *, namespace: str = "team-a") -> None:
        (self.policies / f"{namespace}-{name}.yaml").unlink()

    def remove_all(self) -> None:
        for path in self.policies.glob("team-*.yaml"):
            path.unlink()

    def start_again(self) -> None:
        self.process = self._start()

    def _start(self) -> Process:
        self._starts += 1
        process = Process(
            [
                str(PROGRAM), "run", "--policies", str(self.policies),
                "--socket", str(self.socket), "--http", "127.0.0.1:0",
                *self._arguments,
            ],
            name="agent",
            log=self.directory / f"agent-{self._starts}.log",
        )  # fmt: skip
        try:
            self.debug_address = wait_listening(process)
        except BaseException:
            process.stop()
            raise
        return process

    def state(self) -> dict[str, Any]:
        """Return ``/debug/state``."""
        return read_debug_state(self.debug_address)

    def log(self) -> str:
        """Return what it has logged since its last start."""
        return (self.directory / f"agent-{self._starts}.log").read_text()

    def all_ready(self) -> bool:
        """Whether every session may load and store."""
        sessions = read_debug_state(self.debug_address)["sessions"]
        return bool(sessions) and all(session["ready"] for session in sessions)


@pytest.fixture
def host_memory() -> str:
    return "256Mi"


@contextlib.contextmanager
def running_agent(*, host_memory: str) -> Iterator[Agent]:
    """Run an agent in a directory of its own."""
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        made = Agent(Path(directory), host_memory=host_memory)
        try:
            yield made
        finally:
            made.process.stop()


@pytest.fixture
def agent(host_memory: str) -> Iterator[Agent]:
    with running_agent(host_memory=host_memory) as made:
        yield made


class Engines:
    """Makes reference engines with small blocks, and closes them."""

    def __init__(self, agent: Agent, directory: Path) -> None:
        self._agent = agent
        self._directory = directory
        self._made: list[Engine] = []

    def __call__(self, namespace: str = "team-a", **options: Any) -> Engine:
        """Return an engine that is connected and may load and store."""
        engine = self.unconnected(namespace, **options)
        assert engine.start(timeout_seconds=WAIT_SECONDS), self._agent.process.last_lines()
        self.wait_ready(engine)
        return engine

    def unconnected(self, namespace: str = "team-a", **options: Any) -> Engine:
        """Return an engine that has not been started."""
        token = self._directory / namespace
        token.write_text(TOKENS[namespace])
        settings = ClientSettings(
            session_key=secrets.token_hex(16),
            socket_path=str(self._agent.socket),
            token_path=str(token),
            # What these tests show does not depend on the deadline; a loaded machine misses 5 ms.
            hook_deadline_seconds=0.5,
        )
        sizes = {"num_blocks": 256, "num_layers": 2, "layer_bytes": 8192} | options
        engine = Engine(settings=settings, options=EngineOptions(**sizes))
        self._made.append(engine)
        return engine

    def wait_ready(self, engine: Engine) -> None:
        eventually(
            lambda: (
                (engine.options.kv_file is not None or engine.runner.worker.mapped_ranges())
                and self._agent.all_ready()
            ),
            what="the agent's memory is in use",
        )

    def close(self) -> None:
        for engine in self._made:
            engine.close()


@pytest.fixture
def engines(agent: Agent, tmp_path: Path) -> Iterator[Engines]:
    made = Engines(agent, tmp_path)
    yield made
    made.close()
