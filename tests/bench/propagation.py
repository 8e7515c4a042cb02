"""From ``kubectl apply`` to the first engine decision under the new cap, on the whole real path."""

from __future__ import annotations

import statistics
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.controlplane import ControlPlane
from tests.engine.engine import Engine
from tests.harness.engine import STORED_TOKENS, make_engine, serve_prompt
from tests.harness.installation import Installation, wait_for

TENANT = "team-a"
# Applied in turn; each differs from the one before, in whole chunks of 16 tokens.
CAPS = (32, 64, 16, 96, 48)
# Far above any figure seen; only a broken path reaches it.
DEADLINE_SECONDS = 30.0


@contextmanager
def running() -> Iterator[tuple[Installation, Engine]]:
    """Start everything, with an engine whose prompt is stored."""
    with ControlPlane.start() as cluster, tempfile.TemporaryDirectory(prefix="kvo") as directory:
        installation = Installation(cluster, directory=Path(directory), node="bench")
        try:
            installation.install()
            cluster.create_namespace(name=TENANT)
            installation.start_operator()
            installation.start_agent("--host-memory", "256Mi")
            token = installation.engine_pod("engine", namespace=TENANT)
            engine = make_engine(socket=installation.socket, token=token)
            try:
                engine.start(timeout_seconds=DEADLINE_SECONDS)
                wait_for(lambda: stored(engine), what="the prompt being stored")
                yield installation, engine
            finally:
                engine.close()
        finally:
            installation.stop()


def stored(engine: Engine) -> bool:
    """Serve the prompt once; whether all its chunks are stored by now."""
    serve_prompt(engine)
    return engine.stats.stored_tokens >= STORED_TOKENS


def measure(*, rounds: int) -> list[float]:
    """Return seconds from the start of kubectl to a decision under the new cap, for each round."""
    seconds: list[float] = []
    with running() as (installation, engine):
        for number in range(rounds):
            cap = CAPS[number % len(CAPS)]
            began = time.monotonic()
            installation.cluster.kubectl("apply", "-f", "-", input=manifest(cap))
            while serve_prompt(engine) != cap:
                if time.monotonic() - began > DEADLINE_SECONDS:
                    raise TimeoutError(f"a cap of {cap} was not in force after 30 s")
            seconds.append(time.monotonic() - began)
    return seconds


def manifest(cap: int) -> str:
    """Return a tenant's policy with this cap."""
    return textwrap.dedent(
        f"""\
        apiVersion: kvoffload.io/v1alpha1
        kind: KVOffloadPolicy
        metadata: {{name: chat, namespace: {TENANT}}}
        spec: {{load: {{maxTokens: {cap}}}}}
        """
    )


def report(*, rounds: int = 15) -> None:
    """Print the figures."""
    seconds = sorted(measure(rounds=rounds))
    print(
        "kubectl apply to first decision under the new cap, kubectl's own time included: "
        f"median {statistics.median(seconds) * 1000:.0f} ms, "
        f"min {seconds[0] * 1000:.0f} ms, max {seconds[-1] * 1000:.0f} ms, {rounds} rounds "
        "(goal: median under 1,000 ms)"
    )
