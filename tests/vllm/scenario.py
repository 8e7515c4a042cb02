"""What tests of a real engine share: prompts, the connector's settings, and how to wait."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.vllm.agent import Agent
from tests.vllm.engine import Engine, Output
from tests.vllm.install import environment_python
from tests.vllm.model import VOCABULARY

PROMPT_TOKENS = 900
CACHED_TOKENS = 896  # whole blocks, of 128 tokens as of 64
# From a change of a file or of the agent's state to the engine's next decision; seconds at most.
SETTLE_DEADLINE_SECONDS = 20.0
# Both cores of a small machine may be taken: this tests decisions, not latency.
HOOK_DEADLINE_MS = 500
OUTAGE = "no node agent at"


def connector(
    name: str = "KVOffloadConnector", module: str = "kvoffload_client.vllm", **extra: object
) -> dict[str, object]:
    """Return an engine's ``kv_transfer_config``."""
    return {
        "kv_connector": name,
        "kv_connector_module_path": module,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"hook_deadline_ms": HOOK_DEADLINE_MS, **extra},
    }


class Faults:
    """Orders for ``tests.vllm.faulty``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def order(self, fault: str) -> None:
        """Have the next hook that this fault is about carry it out."""
        partial = self.path.with_suffix(".partial")
        partial.write_text(fault)
        partial.rename(self.path)

    def carried_out(self) -> bool:
        """Whether the last order was."""
        return not self.path.exists()


@contextmanager
def two_engines(
    *,
    directory: Path,
    agent: Agent,
    model: Path,
    faults: Faults,
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Engine, Engine]]:
    """Two engines of one model, (without, with) the connector, started at the same time."""
    assert environment_python().exists(), "no vLLM environment: `python3 tools/setup.py vllm`"
    shared = {"directory": directory, "model": model}
    given = dict(environment or {})
    with (
        Engine(name="plain", arguments=arguments, environment=given, **shared) as plain,
        Engine(
            name="offloading",
            arguments={
                **(arguments or {}),
                "kv_transfer_config": connector("FaultyKVOffloadConnector", "tests.vllm.faulty"),
            },
            environment={
                **given,
                "KVOFFLOAD_SOCKET": str(agent.socket),
                "KVOFFLOAD_FAULT": str(faults.path),
            },
            **shared,
        ) as offloading,
    ):
        plain.wait_until_ready()
        offloading.wait_until_ready()
        yield plain, offloading


def attach(agent: Agent, engine: Engine) -> Engine:
    """Start the agent unless it runs, and wait until the engine loads what it has stored."""
    if not agent.running:
        agent.start()
    prompt = words(0)
    engine.generate(prompt)
    eventually(lambda: again(engine, prompt).cached, CACHED_TOKENS)
    return engine


def words(seed: int, *, count: int = PROMPT_TOKENS) -> list[int]:
    """A prompt that shares no block with that of another seed."""
    generator = random.Random(seed)
    return [generator.randrange(3, VOCABULARY) for _ in range(count)]


def again(engine: Engine, prompt: list[int], **params: object) -> Output:
    """Generate with an empty device cache: what is cached now was loaded."""
    engine.reset_device_cache()
    return engine.generate(prompt, params=params)


def eventually(measured: Callable[[], int], expected: int) -> None:
    """Measure until it is as expected; fails after ``SETTLE_DEADLINE_SECONDS``."""
    until = time.monotonic() + SETTLE_DEADLINE_SECONDS
    while (found := measured()) != expected:
        assert time.monotonic() < until, f"{found} and never {expected}"
        time.sleep(0.1)
