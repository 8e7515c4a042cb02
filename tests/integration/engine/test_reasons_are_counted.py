"""Which cap of whom shortened a load is in /metrics and in /debug/state."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.harness.installation import read_debug_state
from tests.integration.engine.conftest import Agent, Engines, eventually, running_agent

POLICY = "KVOffloadPolicy/team-a/chat"
PROMPT = 170


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with running_agent(host_memory="64Mi") as made:
        yield made


@pytest.fixture
def engine(engines: Engines) -> Engine:
    made = engines()
    made.run([make_request("stores", prefix=1, num_prompt_tokens=PROMPT)])
    return made


def loads(engine: Engine, **params: Any) -> int:
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.add(make_request("loads", prefix=1, num_prompt_tokens=PROMPT), params=params)
    engine.run([])
    return engine.stats.loaded_tokens - before


def in_metrics(agent: Agent, field: str, policy: str) -> int:
    with urllib.request.urlopen(f"http://{agent.debug_address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    labels = f'field="{field}",namespace="team-a",policy="{policy}"'
    found = re.search(
        rf"^kvoffload_limited_total{{{re.escape(labels)}}} (\S+)$", text, re.MULTILINE
    )
    return int(float(found[1])) if found else 0


def in_state(agent: Agent, field: str, policy: str) -> tuple[int, int]:
    """Return the counts of the namespace and of its newest session."""
    state = read_debug_state(agent.debug_address)

    def count(figures: Any) -> int:
        return sum(
            item["count"]
            for item in figures["limited"]
            if (item["field"], item["policy"]) == (field, policy)
        )

    return count(state["namespaces"]["team-a"]), count(state["sessions"][-1])


@pytest.mark.parametrize(
    ("params", "hit", "source"),
    [
        ({}, 32, POLICY),
        ({"max_load_tokens": 16}, 16, "request"),
        ({"max_load_tokens": 1000}, 32, POLICY),
        ({"max_load_tokens": "16"}, 32, POLICY),
    ],
)
def test_a_shortened_load_is_counted_for_the_cap_and_for_who_set_it(
    agent: Agent, engine: Engine, params: dict[str, Any], hit: int, source: str
) -> None:
    agent.policy("chat", maxTokens=40)
    eventually(lambda: loads(engine) == 32, what="the policy is in force")
    metric = in_metrics(agent, "load.maxTokens", source)
    namespace, session = in_state(agent, "load.maxTokens", source)
    assert loads(engine, **params) == hit
    assert in_metrics(agent, "load.maxTokens", source) == metric + 1
    assert in_state(agent, "load.maxTokens", source) == (namespace + 1, session + 1)


def test_a_load_that_no_cap_shortened_is_counted_for_none(agent: Agent, engine: Engine) -> None:
    agent.policy("chat", maxTokens=1000)
    eventually(lambda: loads(engine) == 160, what="the policy is in force")
    before = in_metrics(agent, "load.maxTokens", POLICY), in_state(agent, "load.maxTokens", POLICY)
    assert loads(engine) == 160
    after = in_metrics(agent, "load.maxTokens", POLICY), in_state(agent, "load.maxTokens", POLICY)
    assert after == before


def test_a_load_that_is_not_worth_it_is_counted_for_its_minimum(
    agent: Agent, engine: Engine
) -> None:
    agent.policy("chat", minTokens=200, maxTokens=1000)
    eventually(lambda: loads(engine) == 0, what="the policy is in force")
    before = in_metrics(agent, "load.minTokens", POLICY)
    assert loads(engine) == 0
    assert in_metrics(agent, "load.minTokens", POLICY) == before + 1
