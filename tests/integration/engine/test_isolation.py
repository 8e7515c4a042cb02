"""An engine of one namespace finds no byte of another in anything that it can map."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.engine.content import splitmix
from tests.engine.engine import Engine
from tests.engine.trace import make_request
from tests.integration.engine.conftest import Agent, Engines

PROMPT = 1600
Words = NDArray[np.uint64]


def mapped_words(engine: Engine) -> Words:
    """Return every word that the engine can read in the agent's memory, zeros left out."""
    words = [
        np.frombuffer(
            memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B"), dtype=np.uint64
        )
        for address, nbytes in engine.runner.worker.mapped_ranges()
    ]
    joined: Words = np.concatenate(words)
    return np.compress(joined != 0, joined)


def written_words(engine: Engine) -> Words:
    """Return every word on the engine's device: all that it can ever have stored."""
    return np.unique(np.concatenate([layer.ravel() for layer in engine.runner.memory._layers]))


def count_of(words: Words, among: Words) -> int:
    return int(np.isin(words, among).sum())


def test_content_of_different_tokens_has_no_word_in_common() -> None:
    assert count_of(splitmix(1), splitmix(2)) == 0


def test_the_same_prompt_of_another_namespace_is_not_found(agent: Agent, engines: Engines) -> None:
    of_a, of_b = engines("team-a"), engines("team-b")
    of_a.run([make_request("one", prefix=1, num_prompt_tokens=PROMPT)])
    of_b.run([make_request("two", prefix=1, num_prompt_tokens=PROMPT)])
    assert of_a.stats.stored_tokens == PROMPT
    assert (of_b.stats.loaded_tokens, of_b.stats.stored_tokens) == (0, PROMPT)


def test_no_byte_of_a_is_in_what_b_maps(agent: Agent, engines: Engines) -> None:
    of_a, of_b = engines("team-a"), engines("team-b")
    of_a.run([make_request("one", prefix=1, num_prompt_tokens=PROMPT)])
    of_b.run([make_request("two", prefix=2, num_prompt_tokens=PROMPT)])
    bytes_of_a = written_words(of_a)
    seen_by_b = mapped_words(of_b)
    assert count_of(seen_by_b, written_words(of_b)) == len(seen_by_b) > 0
    assert count_of(seen_by_b, bytes_of_a) == 0
    colleague = engines("team-a")
    assert count_of(mapped_words(colleague), bytes_of_a) > 0, "the search would have found it"


@pytest.mark.parametrize("host_memory", ["24Mi"])
def test_memory_that_a_has_left_reaches_b_empty(agent: Agent, engines: Engines) -> None:
    of_a = engines("team-a", num_blocks=1200)
    for number in range(2):
        of_a.run([make_request(f"a-{number}", prefix=number, num_prompt_tokens=9000)])
    bytes_of_a = written_words(of_a)
    assert of_a.stats.stored_bytes > 12 * 1024 * 1024
    of_a.close()
    of_b = engines("team-b")
    of_b.run([make_request("b", prefix=100, num_prompt_tokens=PROMPT)])
    assert of_b.stats.stored_bytes > 0
    seen_by_b = mapped_words(of_b)
    assert len(seen_by_b) > 0
    assert count_of(seen_by_b, bytes_of_a) == 0
