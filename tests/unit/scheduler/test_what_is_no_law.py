"""What section 9 says not to assert is false here, too: one witness for each.

A property test that claimed one of these would be wrong about a decision that is as recorded.
"""

from __future__ import annotations

from tests.unit.scheduler.builders import World, full, sliding

from kvoffload_agent.scheduler.types import RequestCaps

HUGE = RequestCaps(max_load_tokens=10**9)


def test_a_huge_cap_is_not_the_same_as_none() -> None:
    world = World(full(16), sliding(4, 8), tokens=64)
    world.put_all()
    assert world.ask().tokens == 63
    assert world.ask(HUGE).tokens == 48


def test_a_capped_hit_may_end_inside_a_chunk_of_a_coarser_group() -> None:
    world = World(full(16), sliding(4, 8), tokens=64)
    world.put_chunks({0: "HHHH", 1: "HHHHHHHHHHHMMMMM"})
    assert world.ask(HUGE).tokens == 44


def test_a_cap_of_one_chunk_may_ask_for_two() -> None:
    world = World(full(4, eagle=True), tokens=16)
    world.put_all()
    assert world.ask(RequestCaps(max_load_tokens=4)).tokens == 4
    assert len(world.pool.asked) == 2
