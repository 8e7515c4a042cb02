"""The whole path for each test: real API server, operator and agent processes, one node."""

from __future__ import annotations

import tempfile
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fixtures import start
from tests.engine.engine import Engine
from tests.harness.engine import STORED_TOKENS, make_engine, serve_prompt
from tests.harness.installation import Installation, wait_for

Apply = Callable[[str], None]
MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane on which no operator but these tests' own runs."""
    with start() as plane:
        yield plane


@pytest.fixture
def installation(control_plane: ControlPlane) -> Iterator[Installation]:
    """An operator and the agent of a node of its own."""
    # Unix socket paths hold at most 107 bytes; pytest's own directories can be longer.
    with tempfile.TemporaryDirectory(prefix="kvo") as directory:
        made = Installation(
            control_plane, directory=Path(directory), node=f"node-{uuid.uuid4().hex[:8]}"
        )
        try:
            made.install()
            yield made
        finally:
            made.stop()
            control_plane.kubectl("delete", "kvop,ckvop", "-A", "--all", "--ignore-not-found")
            control_plane.kubectl("delete", "node", made.node, "--ignore-not-found")


@pytest.fixture
def apply(control_plane: ControlPlane) -> Apply:
    """What a user types."""

    def run(manifest: str) -> None:
        control_plane.kubectl("apply", "-f", "-", input=textwrap.dedent(manifest))

    return run


@pytest.fixture
def engines(installation: Installation, namespace: str) -> Iterator[MakeEngine]:
    """Make engines of pods on the node."""
    made: list[Engine] = []

    def make(name: str = "engine", *, labels: dict[str, str] | None = None) -> Engine:
        token = installation.engine_pod(name, namespace=namespace, labels=labels)
        engine = make_engine(socket=installation.socket, token=token)
        made.append(engine)
        engine.start(timeout_seconds=20)
        return engine

    yield make
    for engine in made:
        engine.close()


def cluster_default(tokens: int) -> str:
    """A cluster-wide default cap."""
    return f"""\
        apiVersion: kvoffload.io/v1alpha1
        kind: ClusterKVOffloadPolicy
        metadata: {{name: default}}
        spec:
          defaults: {{load: {{maxTokens: {tokens}}}}}
          nodeBudget: {{hostMemory: 256Mi}}
        """


def tenant_policy(namespace: str, *, max_tokens: int) -> str:
    """A tenant's cap."""
    return f"""\
        apiVersion: kvoffload.io/v1alpha1
        kind: KVOffloadPolicy
        metadata: {{name: chat, namespace: {namespace}}}
        spec: {{load: {{maxTokens: {max_tokens}}}}}
        """


def eventually_loads(engine: Engine, tokens: int, **arguments: Any) -> None:
    """Wait until a served prompt loads exactly this much."""
    wait_for(
        lambda: serve_prompt(engine, **arguments) == tokens,
        what=f"a load of {tokens} tokens",
    )


def store_prompt(engine: Engine) -> None:
    """Serve the prompt until all its chunks are stored."""

    def stored() -> bool:
        serve_prompt(engine)
        return engine.stats.stored_tokens >= STORED_TOKENS

    wait_for(stored, what=f"a store of {STORED_TOKENS} tokens")
