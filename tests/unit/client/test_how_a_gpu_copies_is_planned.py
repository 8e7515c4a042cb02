"""Fragments are copied once each, by the way that suits their size, and never across a piece."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_client.cuda import plan
from kvoffload_client.cuda.plan import Abilities, Batch, Pieces, batches, pieces_of

HOST = 1 << 40
GPU = 1 << 44
EVERYTHING = Abilities(batch=True, kernel=True)
KIB = 1024


def pieces(*ranges: tuple[int, int]) -> Pieces:
    return Pieces(
        np.array([start for start, _ in ranges], dtype=np.uint64),
        np.array([end for _, end in ranges], dtype=np.uint64),
    )


ALL_REGISTERED = pieces((HOST, HOST + (1 << 40)))
NOTHING_REGISTERED = pieces()


def planned(
    host: list[int],
    gpu: list[int],
    lengths: list[int],
    *,
    loads: bool = True,
    registered: Pieces = ALL_REGISTERED,
    abilities: Abilities = EVERYTHING,
) -> list[Batch]:
    host_side, gpu_side, sizes = (np.array(c, dtype=np.uint64) for c in (host, gpu, lengths))
    src, dst = (host_side, gpu_side) if loads else (gpu_side, host_side)
    return list(batches(src, dst, sizes, loads=loads, pieces=registered, abilities=abilities))


def fragments(count: int, nbytes: int) -> tuple[list[int], list[int], list[int]]:
    """``count`` fragments that no side lets join."""
    step = 2 * nbytes
    return (
        [HOST + i * step for i in range(count)],
        [GPU + i * step for i in range(count)],
        [nbytes] * count,
    )


def shape(found: list[Batch]) -> list[tuple[str, int]]:
    return [(batch.method, len(batch.lengths)) for batch in found]


@pytest.mark.parametrize(
    ("count", "nbytes", "expected"),
    [
        (16, 28 * KIB - 16, "kernel"),
        (16, 28 * KIB, "batch"),
        (15, 28 * KIB - 16, "batch"),
        (16, 4 * KIB + 8, "batch"),  # the kernel moves 16 bytes at a time
        (1, 28 * KIB, "single"),
    ],
)
def test_many_small_loads_take_the_kernel_and_everything_else_a_batch(
    count: int, nbytes: int, expected: str
) -> None:
    assert shape(planned(*fragments(count, nbytes))) == [(expected, count)]


def test_stores_never_take_the_kernel() -> None:
    assert shape(planned(*fragments(64, 4 * KIB), loads=False)) == [("batch", 64)]


def test_without_batches_large_fragments_are_copied_one_by_one() -> None:
    old = Abilities(batch=False, kernel=True)
    assert shape(planned(*fragments(64, 4 * KIB), abilities=old)) == [("kernel", 64)]
    assert shape(planned(*fragments(64, 64 * KIB), abilities=old)) == [("single", 64)]


def test_memory_that_is_not_registered_is_copied_one_by_one() -> None:
    found = planned(*fragments(64, 4 * KIB), registered=NOTHING_REGISTERED)
    assert shape(found) == [("single", 64)]


def test_what_goes_on_on_both_sides_is_one_fragment() -> None:
    found = planned([HOST, HOST + 100, HOST + 300], [GPU, GPU + 100, GPU + 300], [100, 200, 50])
    assert [(b.src.tolist(), b.dst.tolist(), b.lengths.tolist()) for b in found] == [
        ([HOST], [GPU], [350])
    ]


def test_what_goes_on_on_one_side_only_is_not_joined() -> None:
    assert shape(planned([HOST, HOST + 100], [GPU, GPU + 101], [100, 100])) == [("batch", 2)]
    assert shape(planned([HOST, HOST + 101], [GPU, GPU + 100], [100, 100])) == [("batch", 2)]


def test_the_size_that_counts_is_that_of_joined_fragments() -> None:
    count, nbytes = 32, 16 * KIB
    host = [HOST + i * nbytes for i in range(count)]
    gpu = [GPU + i * nbytes for i in range(count)]
    assert shape(planned(host, gpu, [nbytes] * count)) == [("single", 1)]


def test_calls_are_bounded() -> None:
    found = planned(*fragments(2 * plan.MAX_BATCH + 1, 64))
    assert shape(found) == [("kernel", plan.MAX_BATCH), ("kernel", plan.MAX_BATCH), ("kernel", 1)]


def test_a_segment_is_registered_in_pieces_of_at_most_64_gib() -> None:
    gib = 1 << 30
    assert pieces_of(HOST, 64 * gib) == [(HOST, 64 * gib)]
    assert pieces_of(HOST, 130 * gib) == [
        (HOST, 64 * gib),
        (HOST + 64 * gib, 64 * gib),
        (HOST + 128 * gib, 2 * gib),
    ]


def test_a_fragment_is_cut_where_a_piece_ends() -> None:
    two = pieces((HOST, HOST + 64), (HOST + 64, HOST + 128))
    (found,) = planned([HOST + 60], [GPU], [10], registered=two)
    assert (found.src.tolist(), found.dst.tolist(), found.lengths.tolist()) == (
        [HOST + 60, HOST + 64],
        [GPU, GPU + 4],
        [4, 6],
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], Pieces]:
    """Host memory of 512 bytes in ranges, some registered; fragments anywhere, GPU side apart."""
    cuts = sorted(draw(st.sets(st.integers(1, 511), max_size=6)) | {0, 512})
    known = [
        (HOST + start, HOST + end) for start, end in itertools.pairwise(cuts) if draw(st.booleans())
    ]
    host, gpu, lengths, at = [], [], [], GPU
    for start, nbytes, gap in draw(
        st.lists(
            st.tuples(st.integers(0, 511), st.integers(1, 200), st.integers(0, 1)), max_size=20
        )
    ):
        # A fragment begins where the one before ended, or anywhere.
        first = host[-1] + lengths[-1] if host and not gap else HOST + start
        size = min(nbytes, HOST + 512 - first)
        if size > 0:
            host.append(first)
            gpu.append(at)
            lengths.append(size)
            at += size + gap
    return host, gpu, lengths, pieces(*known)


@given(
    world=worlds(),
    loads=st.booleans(),
    abilities=st.builds(Abilities, batch=st.booleans(), kernel=st.booleans()),
)
def test_every_byte_is_copied_once_and_no_copy_crosses_a_piece(
    world: tuple[list[int], list[int], list[int], Pieces], *, loads: bool, abilities: Abilities
) -> None:
    host, gpu, lengths, known = world
    expected = {
        (g + i, h + i) for h, g, n in zip(host, gpu, lengths, strict=True) for i in range(n)
    }
    found = planned(
        host,
        gpu,
        lengths,
        loads=loads,
        registered=known,
        abilities=abilities,
    )
    ranges = list(zip(known.starts.tolist(), known.ends.tolist(), strict=True))
    copied: list[tuple[int, int]] = []
    for part in found:
        host_side, gpu_side = (part.src, part.dst) if loads else (part.dst, part.src)
        columns = (host_side.tolist(), gpu_side.tolist(), part.lengths.tolist())
        for h, g, n in zip(*columns, strict=True):
            copied += [(g + i, h + i) for i in range(n)]
            touched = [(start, end) for start, end in ranges if h < end and h + n > start]
            if touched:
                ((start, end),) = touched
                assert start <= h
                assert h + n <= end
            else:
                assert part.method == "single"
    assert len(copied) == len(expected)
    assert set(copied) == expected
