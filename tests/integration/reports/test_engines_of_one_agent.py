"""Reports about engines of one agent: other layouts, a reset, a capacity that goes and returns."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.harness.installation import read_debug_state
from tests.integration.engine.conftest import Agent, Engines, eventually

PROMPT = 170
STORED = 160
MIB = 1 << 20


def serve(engine: Engine, name: str, *, prefix: int = 1, prompt: int = PROMPT) -> int:
    """Serve a prompt on an empty device; return the tokens that were loaded."""
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.run([make_request(name, prefix=prefix, num_prompt_tokens=prompt)])
    assert engine.stats.mismatches == 0
    return engine.stats.loaded_tokens - before


def memory(agent: Agent) -> dict[str, Any]:
    found: dict[str, Any] = read_debug_state(agent.debug_address)["memory"]
    return found


@pytest.mark.parametrize(
    "other", [{"layer_bytes": 16384}, {"num_layers": 3}, {"blocks_per_chunk": 2}]
)
def test_b27_engines_of_other_layouts_see_none_of_each_others_chunks(
    agent: Agent, engines: Engines, other: dict[str, Any]
) -> None:
    first, second = engines(), engines(**other)
    assert serve(first, "one") == 0
    assert serve(second, "two") == 0
    assert serve(first, "three") == STORED
    assert serve(second, "four") == STORED
    partitions = read_debug_state(agent.debug_address)["partitions"]
    assert len({part["fingerprint"] for part in partitions}) == 2


def test_b58_a_reset_forgets_what_host_memory_holds(engines: Engines) -> None:
    engine = engines()
    serve(engine, "stores")
    assert serve(engine, "loads") == STORED
    assert engine.session.reset()
    assert serve(engine, "computes and stores again") == 0
    assert serve(engine, "loads again") == STORED


def test_b59_a_capacity_that_was_halved_and_restored_is_used_in_full_again(
    agent: Agent, engines: Engines
) -> None:
    def capacity(size: str) -> None:
        agent.write(
            "team-a-size.yaml",
            f"""\
            apiVersion: kvoffload.io/v1alpha1
            kind: KVOffloadPolicy
            metadata: {{name: size, namespace: team-a}}
            spec: {{hostMemory: {{capacity: {size}}}}}
            """,
        )

    capacity("64Mi")
    engine = engines(num_blocks=128, layer_bytes=65536)
    prompts = iter(range(1, 10**6))

    def grown() -> bool:
        prefix = next(prompts)
        serve(engine, f"prompt-{prefix}", prefix=prefix, prompt=800)
        return int(memory(agent)["mapped"]) > 48 * MIB

    eventually(grown, what="the capacity is in use")
    capacity("32Mi")
    eventually(lambda: memory(agent)["mapped"] <= 32 * MIB, what="half of it is given back")
    assert serve(engine, "still served", prefix=1, prompt=800) >= 0
    capacity("64Mi")
    eventually(grown, what="the capacity is in use again")

    def evicted() -> int:
        grown()
        state = read_debug_state(agent.debug_address)
        return int(state["namespaces"]["team-a"]["chunks_evicted"])

    eventually(evicted, what="a full cache evicts, and says so")
    assert memory(agent)["mapped"] <= 64 * MIB
