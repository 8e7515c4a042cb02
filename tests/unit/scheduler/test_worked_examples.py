"""The worked examples of the specification's section 8: how many tokens can be loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.scheduler.builders import StubTier, World, full, mamba, sliding

from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps

F16, F4 = full(16), full(4)
S4_8 = sliding(4, 8)
HYBRID = (F16, S4_8)
TAIL = (F16, mamba(16))


@dataclass(frozen=True, kw_only=True)
class Example:
    """``hit`` None = ask later. ``have``: per group the chunks that are there, all by default."""

    number: str
    groups: tuple[GroupConfig, ...]
    tokens: int
    hit: int | None
    cap: int | None = None
    local: int = 0
    max_new: int | None = None
    per_chunk: int = 1
    per_hash: int | None = None
    have: dict[int, str] | None = None
    lookups: int | None = None


def rows(
    number: str,
    groups: tuple[GroupConfig, ...],
    tokens: int,
    cases: dict[int | None, int],
    **more: Any,
) -> list[Example]:
    """One example for each cap."""
    return [
        Example(number=f"{number}-{cap}", groups=groups, tokens=tokens, cap=cap, hit=hit, **more)
        for cap, hit in cases.items()
    ]


HUGE = 10**9

EXAMPLES = [
    Example(number="1", groups=(F16,), tokens=64, cap=20, hit=16, lookups=1),
    Example(number="2", groups=(F16,), tokens=64, cap=0, hit=0, lookups=0),
    *rows("3", (F16,), 64, {15: 0, 16: 16}),
    Example(number="4", groups=(F16,), tokens=64, local=16, cap=20, hit=16),
    Example(number="6", groups=(F16,), tokens=70, hit=64),
    Example(number="7", groups=(F16,), tokens=64, max_new=17, hit=17, lookups=2),
    *rows("8", (F4,), 36, {11: 0, 12: 12, 23: 12, 24: 24, 36: 36}, per_chunk=3),
    *rows("9", (F4,), 36, {None: 32, 32: 32, 20: 20, 19: 0, 12: 0}, per_chunk=3, local=4),
    Example(number="10", groups=(F4,), tokens=12, local=4, per_chunk=3, hit=0, lookups=0),
    Example(number="11", groups=HYBRID, tokens=64, hit=63),
    Example(number="12", groups=HYBRID, tokens=64, cap=HUGE, hit=48),
    *rows("13", HYBRID, 64, {16: 0, 17: 16, 32: 16, 33: 32, 64: 48}),
    *rows("14", HYBRID, 65, {None: 64, HUGE: 64}),
    *rows("15", (S4_8,), 64, {16: 12, 17: 16}),
    Example(number="16", groups=(full(12), F16), tokens=85, local=48, hit=32),
    *rows("17", (full(12), F16), 85, {32: 16, 36: 32}, local=48),
    Example(number="18", groups=TAIL, tokens=30, per_hash=4, hit=28),
    *rows("19", TAIL, 30, {3: 0, 4: 4, 8: 8, 16: 12, 17: 16, 20: 20, 28: 28}, per_hash=4),
    Example(number="21", groups=TAIL, tokens=30, per_hash=4, local=16, cap=8, hit=8),
    Example(number="22", groups=TAIL, tokens=30, per_hash=4, max_new=20, hit=20),
    Example(number="23", groups=TAIL, tokens=30, per_hash=4, max_new=20, cap=8, hit=8),
    Example(number="27", groups=(F4,), tokens=12, have={0: "HMH"}, hit=4),
    Example(number="28", groups=(F4,), tokens=12, have={0: "RMH"}, hit=None),
    Example(number="29-4", groups=(F4,), tokens=12, have={0: "HP"}, cap=4, hit=4),
    Example(number="29", groups=(F4,), tokens=12, have={0: "HP"}, hit=None),
    Example(number="33", groups=(F4, S4_8), tokens=17, have={0: "HHRM", 1: "HH"}, hit=8),
    Example(number="34", groups=(F4, S4_8), tokens=17, have={0: "HHHH", 1: ""}, hit=0),
    Example(
        number="35",
        groups=(F4, sliding(4, 16), S4_8),
        tokens=33,
        have={0: "H" * 8, 1: "HHHH", 2: "MHHMH"},
        hit=12,
    ),
    Example(number="36-12", groups=(full(4, eagle=True),), tokens=12, hit=8),
    Example(number="36-4", groups=(full(4, eagle=True),), tokens=4, hit=0),
    Example(number="37-4", groups=(full(4, eagle=True),), tokens=16, cap=4, hit=4, lookups=2),
    Example(number="37-12", groups=(full(4, eagle=True),), tokens=16, cap=12, hit=12),
    *rows(
        "38",
        (sliding(4, 8, eagle=True),),
        17,
        {4: 0, 5: 4, 8: 4, 9: 8, None: 12},
    ),
    Example(
        number="39",
        groups=(F4, full(4, eagle=True)),
        tokens=12,
        have={0: "H", 1: "HHH"},
        hit=4,
    ),
    Example(
        number="40-4",
        groups=(full(4, eagle=True), mamba(16)),
        tokens=28,
        have={0: "HHHH", 1: "H"},
        hit=0,
    ),
    Example(
        number="40-5",
        groups=(full(4, eagle=True), mamba(16)),
        tokens=28,
        have={0: "HHHHH", 1: "H"},
        hit=16,
    ),
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.number)
def test_a_hit_is_as_long_as_the_specification_says(example: Example) -> None:
    tiers = [StubTier()] if example.have and "R" in "".join(example.have.values()) else []
    world = World(
        *example.groups,
        tokens=example.tokens,
        per_chunk=example.per_chunk,
        per_hash=example.per_hash,
        tiers=tiers,
    )
    if example.have is None:
        world.put_all()
    else:
        world.put_chunks(example.have)
    caps = RequestCaps(max_load_tokens=example.cap)
    result = world.ask(caps, local=example.local, max_new=example.max_new)
    assert result.tokens == example.hit
    assert result.load_async == bool(example.hit)
    if example.lookups is not None:
        assert len(world.pool.asked) == example.lookups


def test_24_a_tail_needs_every_group() -> None:
    world = World(*TAIL, tokens=30, per_hash=4)
    world.put(0, world.hashes)
    world.put(1, world.chunk_keys(1))
    assert world.ask().tokens == 16


def test_25_a_hit_of_whole_chunks_does_not_wait_for_a_tail() -> None:
    world = World(*TAIL, tokens=30, per_hash=4)
    for group in (0, 1):
        world.put(group, world.chunk_keys(group))
        world.put(group, [world.hashes[6]], written=False)
    assert world.ask().tokens == 16


def test_26_a_tail_is_waited_for_if_it_is_all_there_is() -> None:
    world = World(*TAIL, tokens=30, per_hash=4)
    for group in (0, 1):
        world.put(group, [world.hashes[2]], written=False)
    assert world.ask().tokens is None


def test_44_a_load_begins_where_the_first_block_without_content_is() -> None:
    world = World(F4, tokens=36, per_chunk=3)
    world.put_all()
    assert world.ask(local=4).tokens == 32
    plan = world.alloc(world.handle, 32, [[-100, *range(1, 9)]]).plan
    assert plan is not None
    assert world.chunks_of([plan]) == [0, 1, 2]
    assert plan.blocks.tolist() == list(range(1, 9))
    assert plan.first == (1,)
    assert plan.index.tolist() == [1, 2, 0, 1, 2, 0, 1, 2]


def test_45_a_window_group_loads_its_window() -> None:
    world = World(*HYBRID, tokens=64)
    world.put_all()
    assert world.ask().tokens == 63
    plan = world.alloc(world.handle, 63, [[1, 2, 3, 4], [0] * 14 + [5, 6]]).plan
    assert plan is not None
    assert world.chunks_of([plan], 0) == [0, 1, 2, 3]
    assert world.chunks_of([plan], 1) == [14, 15]


def test_47_a_chunk_that_is_being_loaded_is_waited_for_but_not_under_a_cap_of_0() -> None:
    world = World(F4, tokens=16)
    world.put_all()
    assert world.ask().tokens == 16
    world.alloc(world.handle, 16)
    assert world.ask().tokens is None
    assert world.ask(RequestCaps(max_load_tokens=0)).tokens == 0


def test_48_a_request_with_a_store_in_flight_waits_without_a_lookup() -> None:
    world = World(F4, tokens=16)
    handle = world.request()
    world.run(handle, 16)
    world.idle(preempted=[handle])
    world.pool.asked.clear()
    assert world.match(handle).tokens is None
    assert not world.pool.asked
