"""Policies and requests cap what an engine loads; the agent enforces it, at once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.integration.engine.conftest import Agent, Engines, eventually, running_agent

PROMPT = 170
STORED = 160
_names = count()


def loaded(engine: Engine, params: Any = None) -> int:
    """Return how many tokens of the stored prompt a request loads on an empty device."""
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.add(
        make_request(f"loads-{next(_names)}", prefix=1, num_prompt_tokens=PROMPT), params=params
    )
    engine.run([])
    assert engine.stats.mismatches == 0
    return engine.stats.loaded_tokens - before


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    """One agent for all tests here: none of them needs a fresh one."""
    with running_agent(host_memory="256Mi") as made:
        yield made


@pytest.fixture(scope="module")
def storing_engine(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engines = Engines(agent, tmp_path_factory.mktemp("tokens"))
    made = engines()
    made.run([make_request("stores", prefix=1, num_prompt_tokens=PROMPT)])
    assert made.stats.stored_tokens == STORED
    yield made
    engines.close()


@pytest.fixture
def engine(agent: Agent, storing_engine: Engine) -> Engine:
    """A running engine whose prompt is stored already, and no policy."""
    agent.remove_all()
    eventually(lambda: loaded(storing_engine) == STORED, what="nothing caps loads")
    return storing_engine


def test_without_a_policy_everything_stored_is_loaded(engine: Engine) -> None:
    assert loaded(engine) == STORED


@pytest.mark.parametrize(
    ("cap", "expected"), [(0, 0), (15, 0), (16, 16), (20, 16), (159, 144), (10**6, STORED)]
)
def test_a_request_may_cap_itself_in_whole_chunks(engine: Engine, cap: int, expected: int) -> None:
    assert loaded(engine, {"max_load_tokens": cap}) == expected


def test_a_new_policy_caps_a_running_engine_and_its_removal_frees_it(
    agent: Agent, engine: Engine
) -> None:
    agent.policy("chat", maxTokens=20)
    eventually(lambda: loaded(engine) == 16, what="a cap of 20 loads 16")
    agent.policy("chat", maxTokens=0)
    eventually(lambda: loaded(engine) == 0, what="a cap of 0 loads nothing")
    agent.remove("chat")
    eventually(lambda: loaded(engine) == STORED, what="without the policy all is loaded")


def test_what_a_cap_refuses_is_counted_for_the_policy_that_set_it(
    agent: Agent, engine: Engine
) -> None:
    agent.policy("chat", maxTokens=20)
    eventually(lambda: loaded(engine) == 16, what="a cap of 20 loads 16")
    refused = engine.stats.refused_tokens["KVOffloadPolicy/team-a/chat"]
    assert loaded(engine) == 16
    assert engine.stats.refused_tokens["KVOffloadPolicy/team-a/chat"] == refused + STORED - 16


@pytest.mark.parametrize("bad", ["8", -1, True, 8.5, [8]])
def test_a_malformed_cap_of_a_request_is_as_if_absent_under_the_policys(
    agent: Agent, engine: Engine, bad: object
) -> None:
    agent.policy("chat", maxTokens=20)
    eventually(lambda: loaded(engine) == 16, what="a cap of 20 loads 16")
    assert loaded(engine, {"max_load_tokens": bad}) == 16


def test_a_request_cannot_widen_what_policy_allows(agent: Agent, engine: Engine) -> None:
    agent.policy("chat", maxTokens=20)
    eventually(lambda: loaded(engine) == 16, what="a cap of 20 loads 16")
    assert loaded(engine, {"max_load_tokens": 1000}) == 16


def test_another_namespaces_policy_changes_nothing(agent: Agent, engine: Engine) -> None:
    agent.policy("chat", namespace="team-b", maxTokens=0)
    agent.policy("marker", maxTokens=100)  # taken in the same look, or a later one
    eventually(lambda: loaded(engine) == 96, what="a cap of 100 loads 96")
