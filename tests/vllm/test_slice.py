"""The real engine, a real agent, and policies: what is loaded, and that the tokens are right.

One engine without a connector says what the tokens are. The other one has the connector and starts
before there is an agent. Prompts are of 900 tokens; blocks, chunks and hashes of 128.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm.agent import Agent
from tests.vllm.engine import START_DEADLINE_SECONDS, Engine
from tests.vllm.model import write_model
from tests.vllm.scenario import (
    CACHED_TOKENS,
    OUTAGE,
    Faults,
    again,
    attach,
    eventually,
    two_engines,
    words,
)

# When an agent is killed: see `faulty`.
MOMENTS = ["kill-at-match", "kill-at-alloc", "kill-at-load"]

# The first test's time includes the start of the engines, which has a deadline of its own.
pytestmark = pytest.mark.timeout(START_DEADLINE_SECONDS + 300)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def faults(directory: Path) -> Faults:
    return Faults(directory / "fault")


@pytest.fixture(scope="module")
def agent(directory: Path) -> Iterator[Agent]:
    """An agent that is not started yet."""
    with Agent(directory) as agent:
        yield agent


@pytest.fixture(scope="module")
def engines(directory: Path, agent: Agent, faults: Faults) -> Iterator[tuple[Engine, Engine]]:
    model = write_model(directory / "model")
    with two_engines(directory=directory, agent=agent, model=model, faults=faults) as engines:
        yield engines


@pytest.fixture(scope="module")
def plain(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


@pytest.fixture(scope="module")
def offloading(engines: tuple[Engine, Engine]) -> Engine:
    return engines[1]


@pytest.fixture
def attached(agent: Agent, offloading: Engine) -> Engine:
    """The engine, once it loads what it has stored."""
    return attach(agent, offloading)


def test_without_an_agent_the_engine_serves_and_loads_nothing(
    plain: Engine, offloading: Engine, agent: Agent
) -> None:
    assert not agent.socket.exists()
    prompt = words(1)
    assert offloading.generate(prompt).tokens == plain.generate(prompt).tokens
    assert again(offloading, prompt).cached == 0
    assert len(offloading.log_lines(OUTAGE)) == 1


def test_an_agent_that_comes_later_is_found(attached: Engine) -> None:
    prompt = words(2)
    assert attached.generate(prompt).cached == 0
    assert again(attached, prompt).cached == CACHED_TOKENS


def test_what_is_loaded_gives_the_tokens_of_a_run_without_connector(
    plain: Engine, attached: Engine
) -> None:
    prompt = words(3)
    expected = plain.generate(prompt)
    stored = attached.generate(prompt)
    loaded = again(attached, prompt)
    assert (stored.cached, loaded.cached) == (0, CACHED_TOKENS)
    assert stored.tokens == loaded.tokens == expected.tokens
    assert loaded.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


def test_a_poisoned_load_gives_other_tokens(plain: Engine, attached: Engine, agent: Agent) -> None:
    prompt = words(4)
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    assert agent.flip_signs() > 0
    try:
        poisoned = again(attached, prompt)
    finally:
        agent.flip_signs()
    assert poisoned.cached == CACHED_TOKENS
    assert poisoned.tokens != expected
    assert again(attached, prompt).tokens == expected


def test_a_policy_caps_the_running_engine_and_its_removal_frees_it(
    plain: Engine, attached: Engine, agent: Agent
) -> None:
    prompt = words(5)
    expected = attached.generate(prompt).tokens
    assert expected == plain.generate(prompt).tokens
    agent.cap_loads(300)
    try:
        eventually(lambda: again(attached, prompt).cached, 256)
        assert again(attached, prompt).tokens == expected
    finally:
        agent.cap_loads(None)
    eventually(lambda: again(attached, prompt).cached, CACHED_TOKENS)


@pytest.mark.parametrize(
    ("asked", "loaded"),
    [
        (0, 0),
        (127, 0),
        (300, 256),
        ("8", CACHED_TOKENS),
        (-1, CACHED_TOKENS),
        (True, CACHED_TOKENS),
    ],
)
def test_a_request_may_only_tighten_and_a_malformed_wish_is_as_if_absent(
    attached: Engine, asked: object, loaded: int
) -> None:
    prompt = words(6)
    attached.generate(prompt)
    assert again(attached, prompt, max_load_tokens=asked).cached == loaded


def test_an_agent_that_hangs_costs_no_token(plain: Engine, attached: Engine, agent: Agent) -> None:
    prompt = words(7)
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    agent.freeze()
    try:
        assert again(attached, prompt).tokens == expected
    finally:
        agent.thaw()
    eventually(lambda: again(attached, prompt).cached, CACHED_TOKENS)


def test_a_killed_agent_costs_no_token_and_one_line_and_its_successor_is_found(
    plain: Engine, attached: Engine, agent: Agent
) -> None:
    prompt = words(8)
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    outages = len(attached.log_lines(OUTAGE))
    agent.kill()
    recomputed = again(attached, prompt)
    assert (recomputed.cached, recomputed.tokens) == (0, expected)
    assert len(attached.log_lines(OUTAGE)) == outages + 1
    agent.start()
    eventually(lambda: again(attached, prompt).cached, CACHED_TOKENS)
    assert again(attached, prompt).tokens == expected


def test_requests_at_once_that_share_a_prefix_load_it_and_answer_alike(
    plain: Engine, attached: Engine
) -> None:
    head = words(9)[:512]
    prompts = [[*head, *words(10 + place)[:300]] for place in range(8)]
    expected = [output.tokens for output in plain.generate_all(prompts)]
    assert [output.tokens for output in attached.generate_all(prompts)] == expected
    attached.reset_device_cache()
    loaded = attached.generate_all(prompts)
    assert [output.tokens for output in loaded] == expected
    assert {output.cached for output in loaded} == {768}


def test_a_load_that_fails_in_the_worker_is_recomputed_and_the_next_one_loads(
    plain: Engine, attached: Engine, agent: Agent, faults: Faults
) -> None:
    prompt = words(20)
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    failed = agent.figures()["loads_failed"]
    faults.order("unmapped")
    recomputed = again(attached, prompt)
    assert faults.carried_out()
    assert recomputed.tokens == expected
    assert agent.figures()["loads_failed"] == failed + 1
    loaded = again(attached, prompt)
    assert (loaded.cached, loaded.tokens) == (CACHED_TOKENS, expected)


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_agent_killed_around_a_load_costs_no_token(
    plain: Engine, attached: Engine, agent: Agent, faults: Faults, moment: str
) -> None:
    prompt = words(21 + MOMENTS.index(moment))
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    outages = len(attached.log_lines(OUTAGE))
    faults.order(f"{moment} {agent.process.popen.pid}")
    assert again(attached, prompt).tokens == expected
    assert faults.carried_out()
    eventually(lambda: len(attached.log_lines(OUTAGE)), outages + 1)
