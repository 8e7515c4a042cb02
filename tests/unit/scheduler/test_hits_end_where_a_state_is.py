"""A hit with recurrent layers ends where their state was stored, whatever other groups' chunks are.

A Mamba state holds every token before it: loaded for an earlier end it would be another prompt's.
vLLM's rule rounds the ceiling to Mamba chunks once, before groups with smaller chunks lower it.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.scheduler.builders import FREE, World, full, mamba, sliding

from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps

HASH = 4


@pytest.mark.parametrize(
    ("attention", "states", "hit"),
    [
        (5, [32], 0),
        (5, [16], 16),
        (5, [16, 32], 16),
        (8, [32], 32),
        (3, [16], 0),
        (9, [16, 32], 32),
    ],
)
def test_smaller_attention_chunks_do_not_end_a_hit_inside_a_mamba_chunk(
    attention: int, states: list[int], hit: int
) -> None:
    world = World(full(4), mamba(16), tokens=40, per_hash=HASH)
    world.put(0, world.hashes[:attention])
    world.put(1, [world.hashes[end // HASH - 1] for end in states])
    assert world.ask().tokens == hit


def test_a_window_behind_the_state_lowers_the_hit_to_an_earlier_state() -> None:
    world = World(full(16), mamba(16), sliding(4, 4), tokens=70, per_hash=HASH)
    world.put_all([0, 1])
    world.put(2, world.hashes[:7])
    assert world.ask().tokens == 16


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[GroupConfig]]:
    block = HASH * draw(st.integers(1, 4))
    others = st.one_of(
        st.integers(1, 4).map(lambda blocks: full(HASH * blocks)),
        st.builds(
            lambda blocks, window: sliding(HASH * blocks, window),
            st.integers(1, 4),
            st.integers(1, 24),
        ),
    )
    groups = draw(st.permutations([mamba(block), *draw(st.lists(others, max_size=3))]))
    tokens = draw(st.integers(1, 100))
    world = World(*groups, tokens=tokens, per_hash=HASH, per_chunk=draw(st.sampled_from([1, 1, 2])))
    for number in range(len(groups)):
        kept = draw(st.integers(0, len(world.hashes)))
        gone = draw(st.sets(st.integers(0, len(world.hashes)), max_size=2))
        world.put(number, [key for at, key in enumerate(world.hashes[:kept]) if at not in gone])
    return world, list(groups)


@given(worlds(), st.none() | st.integers(0, 100), st.none() | st.integers(0, 100))
def test_every_recurrent_group_has_its_state_for_exactly_the_end_of_a_hit(
    scene: tuple[World, list[GroupConfig]], cap: int | None, max_new: int | None
) -> None:
    world, groups = scene
    caps = FREE if cap is None else RequestCaps(max_load_tokens=cap)
    hit = world.ask(caps, max_new=max_new).tokens
    assert hit is not None
    if hit:
        assert hit % HASH == 0
        for number, group in enumerate(groups):
            if group.mamba_align:
                [slot] = world.pool.host.index.find(number, [world.hashes[hit // HASH - 1]])
                assert slot >= 0
