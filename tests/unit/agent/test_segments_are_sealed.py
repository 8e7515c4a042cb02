"""Segments of the arena: sealed, whole rows, ids never used twice."""

from __future__ import annotations

import mmap
import os

import pytest

from kvoffload_agent.memory.arena import Arena, Row
from kvoffload_agent.memory.guard import Refuse
from kvoffload_agent.memory.snapshot import GIB, MIB, Level, Snapshot


def roomy() -> Snapshot:
    return Snapshot(
        levels=(Level(path="/a", version=2, limit=8 * GIB),), available=8 * GIB, total=8 * GIB
    )


async def grown(arena: Arena, *, row_bytes: int = 1000, budget: int | None = None) -> Row:
    row = await arena.grow(ranks=2, row_bytes=row_bytes, segment_bytes=MIB, budget=budget)
    assert isinstance(row, Row)
    return row


async def test_nobody_can_change_a_segments_length() -> None:
    arena = Arena(snapshot=roomy)
    row = await grown(arena)
    for segment in row.segments:
        for size in (0, segment.bytes - 1, segment.bytes + 4096):
            with pytest.raises(PermissionError):
                os.ftruncate(segment.fd, size)
        with mmap.mmap(segment.fd, segment.bytes) as mapped:
            mapped[0:4] = b"data"
    arena.close_all()


async def test_a_segment_holds_whole_rows_and_is_populated() -> None:
    arena = Arena(snapshot=roomy)
    row = await grown(arena, row_bytes=3000)
    assert row.bytes == MIB // 3000 * 3000
    assert arena.usage.mapped == arena.usage.populated == 2 * row.bytes
    pages = os.fstat(row.segments[0].fd).st_blocks * 512
    assert pages >= row.bytes
    arena.close_all()
    assert arena.usage.mapped == 0


async def test_ids_are_never_used_twice() -> None:
    arena = Arena(snapshot=roomy)
    seen: set[int] = set()
    for _ in range(5):
        row = await grown(arena)
        ids = {segment.id for segment in row.segments}
        assert not ids & seen
        seen |= ids
        arena.close(row)
    assert seen == set(range(10))


async def test_a_budget_makes_it_smaller_and_then_refuses() -> None:
    arena = Arena(snapshot=roomy)
    row = await grown(arena, budget=500_000)
    assert row.total <= 500_000
    assert row.limited_by == "policy budget"
    refused = await arena.grow(ranks=2, row_bytes=1000, segment_bytes=MIB, budget=1999)
    assert isinstance(refused, Refuse)
    arena.close_all()


async def test_a_guard_that_refuses_midway_leaves_whole_populated_rows() -> None:
    taken = 0

    def shrinking() -> Snapshot:
        nonlocal taken
        taken += 1
        # The first question is about everything; of the steps only the first passes.
        free = 10 * GIB if taken <= 2 else 0
        level = Level(path="/a", version=2, limit=free + 64 * MIB)
        return Snapshot(levels=(level,), available=64 * GIB, total=64 * GIB)

    arena = Arena(snapshot=shrinking)
    row = await arena.grow(ranks=1, row_bytes=5 * MIB, segment_bytes=80 * MIB, budget=None)
    assert isinstance(row, Row)
    assert row.bytes == 30 * MIB
    assert os.fstat(row.segments[0].fd).st_size == row.bytes
    assert arena.usage.populated == arena.usage.mapped == row.bytes
    arena.close_all()
