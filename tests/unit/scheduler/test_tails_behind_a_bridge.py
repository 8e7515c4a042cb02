"""A hit that ends inside the chunk after the next one needs the next one as a whole.

Only a draft model's proof reaches so far. One group of it, one of states; blocks of 16 tokens, a
hash for every 4. The state at 28 is proved by the draft model's key at 32; the chunk between 0 and
16 is the bridge to it.
"""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import World, full, mamba

BRIDGE, PROOF, STATE = 16, 32, 28


def hit(
    *,
    draft: tuple[int, ...] = (),
    states: tuple[int, ...] = (),
    written: tuple[int, ...] = (),
    tokens: int = 60,
) -> int | None:
    """Return the hit with keys at these ends; ``written``: ends of the draft's not ready yet."""
    world = World(full(16, eagle=True), mamba(16), tokens=tokens, per_hash=4)
    for group, ends in enumerate((draft, states)):
        world.put(group, [world.hashes[end // 4 - 1] for end in ends])
    world.put(0, [world.hashes[end // 4 - 1] for end in written], written=False)
    return world.ask().tokens


def test_with_the_bridge_the_far_end_is_reached() -> None:
    assert hit(draft=(BRIDGE, PROOF), states=(STATE,)) == 28


def test_without_the_bridge_only_ends_before_it_count() -> None:
    assert hit(draft=(PROOF,), states=(STATE,)) == 0
    assert hit(draft=(PROOF, 12), states=(STATE, 8)) == 8


def test_a_bridge_that_is_being_written_is_waited_for_if_nothing_nearer_is_there() -> None:
    assert hit(draft=(PROOF,), states=(STATE,), written=(BRIDGE,)) is None
    assert hit(draft=(PROOF, 12), states=(STATE, 8), written=(BRIDGE,)) == 8


@pytest.mark.parametrize(("tokens", "expected"), [(36, 28), (32, 28), (31, 24), (28, 24)])
def test_the_proof_has_to_be_part_of_the_prompt(tokens: int, expected: int) -> None:
    draft = tuple(end for end in (BRIDGE, 28, PROOF) if end <= tokens)
    states = tuple(end for end in (24, STATE) if end <= tokens)
    assert hit(draft=draft, states=states, tokens=tokens) == expected


def test_a_proof_without_its_state_is_no_hit() -> None:
    assert hit(draft=(BRIDGE, PROOF)) == 0
