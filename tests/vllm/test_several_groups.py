"""A model with windows and full attention on the real engine: two KV cache groups.

Invalid blocks of such a model raise in vLLM, so that a failed load has to go another way than with
one group (DESIGN section 5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.vllm.agent import Agent
from tests.vllm.engine import START_DEADLINE_SECONDS, Engine
from tests.vllm.gemma import write_gemma
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

BLOCK_TOKENS = 64
# Of a group on this engine: two layers of keys and values, two heads of 64 float32.
BLOCK_BYTES = 2 * 2 * BLOCK_TOKENS * 2 * 64 * 4
FULL_BLOCKS = CACHED_TOKENS // BLOCK_TOKENS
# The next token sees 127 before it: the two blocks before the 896th.
WINDOW_BLOCKS = 2

# The first test's time includes the start of the engines, which has a deadline of its own.
pytestmark = pytest.mark.timeout(START_DEADLINE_SECONDS + 300)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("groups")


@pytest.fixture(scope="module")
def faults(directory: Path) -> Faults:
    return Faults(directory / "fault")


@pytest.fixture(scope="module")
def agent(directory: Path) -> Iterator[Agent]:
    with Agent(directory) as agent:
        agent.start()
        yield agent


@pytest.fixture(scope="module")
def engines(directory: Path, agent: Agent, faults: Faults) -> Iterator[tuple[Engine, Engine]]:
    with two_engines(
        directory=directory,
        agent=agent,
        model=write_gemma(directory / "model"),
        faults=faults,
        arguments={"block_size": BLOCK_TOKENS, "disable_hybrid_kv_cache_manager": False},
    ) as engines:
        yield engines


@pytest.fixture(scope="module")
def plain(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


@pytest.fixture
def attached(agent: Agent, engines: tuple[Engine, Engine]) -> Engine:
    return attach(agent, engines[1])


def test_full_layers_and_the_window_are_loaded_and_the_tokens_are_those_without_connector(
    plain: Engine, attached: Engine, agent: Agent
) -> None:
    prompt = words(1)
    expected = plain.generate(prompt)
    stored = attached.generate(prompt)
    before = agent.figures()["bytes_loaded"]
    loaded = again(attached, prompt)
    assert (stored.cached, loaded.cached) == (0, CACHED_TOKENS)
    assert stored.tokens == loaded.tokens == expected.tokens
    assert loaded.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    # Of the layers with a window, only what a token still sees.
    assert agent.figures()["bytes_loaded"] - before == (FULL_BLOCKS + WINDOW_BLOCKS) * BLOCK_BYTES


def test_a_poisoned_load_gives_other_tokens(plain: Engine, attached: Engine, agent: Agent) -> None:
    prompt = words(2)
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


def test_a_load_that_fails_in_the_worker_is_recomputed_and_the_next_one_loads(
    plain: Engine, attached: Engine, agent: Agent, faults: Faults
) -> None:
    prompt = words(3)
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


@pytest.mark.parametrize("moment", ["kill-at-alloc"])
def test_an_agent_killed_around_a_load_costs_no_token(
    plain: Engine, attached: Engine, agent: Agent, faults: Faults, moment: str
) -> None:
    prompt = words(10 + len(moment))
    expected = plain.generate(prompt).tokens
    assert attached.generate(prompt).tokens == expected
    outages = len(attached.log_lines(OUTAGE))
    faults.order(f"{moment} {agent.process.popen.pid}")
    assert again(attached, prompt).tokens == expected
    assert faults.carried_out()
    eventually(lambda: len(attached.log_lines(OUTAGE)), outages + 1)
