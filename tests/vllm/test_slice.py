"""The real engine, a real agent, and policies: what is loaded, and that the tokens are right.

One engine without a connector says what the tokens are. The other one has the connector and starts
before there is an agent. Prompts are of 900 tokens; blocks, chunks and hashes of 128.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.vllm.agent import Agent
from tests.vllm.engine import START_DEADLINE_SECONDS, Engine, Output
from tests.vllm.install import environment_python
from tests.vllm.model import VOCABULARY, write_model

PROMPT_TOKENS = 900
CACHED_TOKENS = 896  # seven whole blocks
# From a change of a file or of the agent's state to the engine's next decision; seconds at most.
SETTLE_DEADLINE_SECONDS = 20.0
# Both cores of a small machine may be taken: this tests decisions, not latency.
HOOK_DEADLINE_MS = 500
OUTAGE = "no node agent at"

# The first test's time includes the start of the engines, which has a deadline of its own.
pytestmark = pytest.mark.timeout(START_DEADLINE_SECONDS + 300)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="module")
def agent(directory: Path) -> Iterator[Agent]:
    """An agent that is not started yet."""
    with Agent(directory) as agent:
        yield agent


@pytest.fixture(scope="module")
def engines(directory: Path, agent: Agent) -> Iterator[tuple[Engine, Engine]]:
    """(without, with) the connector, started at the same time."""
    assert environment_python().exists(), "no vLLM environment: `python3 tools/setup.py vllm`"
    model = write_model(directory / "model")
    transfer = {
        "kv_connector": "KVOffloadConnector",
        "kv_connector_module_path": "kvoffload_client.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"hook_deadline_ms": HOOK_DEADLINE_MS},
    }
    with (
        Engine(name="plain", directory=directory, model=model) as plain,
        Engine(
            name="offloading",
            directory=directory,
            model=model,
            arguments={"kv_transfer_config": transfer},
            environment={"KVOFFLOAD_SOCKET": str(agent.socket)},
        ) as offloading,
    ):
        plain.wait_until_ready()
        offloading.wait_until_ready()
        yield plain, offloading


@pytest.fixture(scope="module")
def plain(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


@pytest.fixture(scope="module")
def offloading(engines: tuple[Engine, Engine]) -> Engine:
    return engines[1]


@pytest.fixture
def attached(agent: Agent, offloading: Engine) -> Engine:
    """The engine, once it loads what it has stored."""
    if agent._process is None or not agent.process.running:
        agent.start()
    prompt = words(0)
    offloading.generate(prompt)
    eventually(lambda: again(offloading, prompt).cached, CACHED_TOKENS)
    return offloading


def words(seed: int) -> list[int]:
    """A prompt that shares no block with that of another seed."""
    generator = random.Random(seed)
    return [generator.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)]


def again(engine: Engine, prompt: list[int], **params: object) -> Output:
    """Generate with an empty device cache: what is cached now was loaded."""
    engine.reset_device_cache()
    return engine.generate(prompt, params=params)


def eventually(measured: Callable[[], int], expected: int) -> None:
    until = time.monotonic() + SETTLE_DEADLINE_SECONDS
    while (found := measured()) != expected:
        assert time.monotonic() < until, f"{found} and never {expected}"
        time.sleep(0.1)


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
