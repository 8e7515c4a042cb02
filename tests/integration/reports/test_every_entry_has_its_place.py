"""Plans name block, segment, offset and length of each entry: holes and tails restore bit-equal.

From the agent's scheduler through its wire and the client's worker to the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.engine.conftest import Agent, running_agent
from tests.integration.reports.engine import LAYER_BYTES, SteppedEngine, entries, hashes

from kvoffload_api.wire.messages import Group, Handoff
from kvoffload_client import StepInput

FULL = Group(kind="full", tokens_per_block=16, block_bytes=2 * LAYER_BYTES)
WINDOW = Group(kind="sliding_window", tokens_per_block=4, block_bytes=LAYER_BYTES, window=4)
STATE = Group(kind="mamba", tokens_per_block=16, block_bytes=LAYER_BYTES, mamba_align=True)

MakeEngine = Callable[..., SteppedEngine]


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with running_agent(host_memory="64Mi") as made:
        yield made


@pytest.fixture
def engine(agent: Agent, tmp_path: Path) -> Iterator[MakeEngine]:
    made: list[SteppedEngine] = []

    def make(*groups: Group, **more: int) -> SteppedEngine:
        made.append(SteppedEngine(agent, tmp_path, groups=groups, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_hole_inside_a_later_chunk_restores_each_block_to_its_own_place(
    engine: MakeEngine,
) -> None:
    """Two blocks a chunk; windows of one block are kept at every 32 tokens, so half a chunk is."""
    made = engine(FULL, WINDOW, tokens_per_hash=4, blocks_per_chunk=2, retention=32)
    keys = hashes("hole", 16)
    handle = made.request("stores", tokens=64, keys=keys)
    # The allocator has freed what no window needs: only blocks 7 and 15 of the window are there.
    window = [0] * 7 + [27] + [0] * 7 + [35]
    stored = made.compute(handle, tokens=64, tables=[[1, 2, 3, 4], window], step=StepInput())
    made.end(handle, tokens=64)
    [job] = stored
    assert [entry[0] for entry in entries(job, 1)] == [27, 35]
    row = {entry[2] % (2 * FULL.block_bytes) for entry in entries(job, 1)}
    assert row == {LAYER_BYTES}, "each is the second block of its chunk, though the first is a hole"
    assert len({(segment, offset) for _, segment, offset, _ in entries(job, 1)}) == 2

    before = [made.block(0, n) for n in range(1, 5)], made.block(1, 27), made.block(1, 35)
    again = made.request("loads", tokens=64 + 1, keys=keys)
    hit = made.match(again)
    assert hit == 64
    made.load(again, tokens=hit, tables=[[41, 42, 43, 44], [0] * 15 + [55]])
    assert [made.block(0, n) for n in range(41, 45)] == before[0]
    assert made.block(1, 55) == before[2]

    shorter = made.request("loads half", tokens=32 + 1, keys=keys[:8])
    assert made.match(shorter) == 32
    made.load(shorter, tokens=32, tables=[[45, 46], [0] * 7 + [56]])
    assert made.block(1, 56) == before[1]
    assert [made.block(0, n) for n in (45, 46)] == before[0][:2]


def test_b24_a_state_of_a_prompt_of_whole_chunks_restores_bit_equal(engine: MakeEngine) -> None:
    made = engine(FULL, STATE, tokens_per_hash=16)
    keys = hashes("state", 3)
    handle = made.request("stores", tokens=48, keys=keys)
    handoffs = [
        Handoff(handle=handle, group=1, block=20 + at, boundary=16 * at) for at in (1, 2, 3)
    ]
    stored = made.compute(
        handle,
        tokens=48,
        tables=[[1, 2, 3], [0, 0, 23]],
        step=StepInput(handoffs=handoffs),
    )
    assert sum(len(entries(job, 1)) for job in stored) == 3
    made.end(handle, tokens=48)
    want = [made.block(0, 1), made.block(0, 2)], made.block(1, 22)

    again = made.request("loads", tokens=48, keys=keys)
    # The last token is computed again, so the state before it is that of two chunks.
    assert made.match(again) == 32
    job = made.load(again, tokens=32, tables=[[41, 42], [0, 51]])
    assert len(entries(job, 1)) == 1
    assert ([made.block(0, 41), made.block(0, 42)], made.block(1, 51)) == want
