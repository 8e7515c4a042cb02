"""Rows, slots and where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.partitions.space import SlotSpace, row_bytes


@pytest.mark.parametrize(
    ("blocks_per_chunk", "block_bytes", "expected"),
    [
        (1, [1], 4096),
        (1, [128], 4096),
        (1, [4000], 4096),
        (1, [4096], 4096),
        (16, [4097], 65536 + 4096),
        (2, [100, 3000, 7], 8192),
    ],
)
def test_a_row_holds_the_largest_group_in_whole_pages(
    blocks_per_chunk: int, block_bytes: list[int], expected: int
) -> None:
    assert row_bytes(blocks_per_chunk=blocks_per_chunk, block_bytes=block_bytes) == expected


@given(sizes=st.lists(st.integers(min_value=1, max_value=20), min_size=1, max_size=8))
def test_every_slot_has_one_place_of_its_own(sizes: list[int]) -> None:
    space = SlotSpace(row_bytes=256)
    for number, rows in enumerate(sizes):
        assert space.extend(segment=10 * number, size=rows * 256) == rows
    slots = np.arange(sum(sizes), dtype=np.int64)
    segments, offsets = space.locate(slots, np.zeros_like(slots))
    places = set(zip(segments.tolist(), offsets.tolist(), strict=True))
    assert len(places) == len(slots) == len(space)
    for number, rows in enumerate(sizes):
        inside = offsets[segments == 10 * number]
        assert inside.tolist() == [256 * row for row in range(rows)]


def test_a_sub_block_lies_inside_its_row() -> None:
    space = SlotSpace(row_bytes=512)
    space.extend(segment=3, size=1024)
    segments, offsets = space.locate(
        np.array([1, 0], dtype=np.int64), np.array([128, 384], dtype=np.int64)
    )
    assert segments.tolist() == [3, 3]
    assert offsets.tolist() == [640, 384]
