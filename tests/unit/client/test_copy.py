"""Both copies move exactly the named bytes, whatever their sizes and alignments."""

from __future__ import annotations

import logging
import platform
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload_client.copy import choose_copy, kernel

COPIES = ["kernel", "numpy"]
ARENA = 1 << 17
GUARD = 0xA5

# Around the kernel's own borders: small copies, 32-byte heads, 128-byte loops, one page prefetched.
LENGTHS = st.one_of(
    st.integers(0, 700),
    st.sampled_from([4095, 4096, 4097, 4096 + 127, 4096 + 128, 4096 + 129, 8192, 12345]),
)


@given(
    data=st.data(),
    lengths=st.lists(LENGTHS, min_size=1, max_size=8),
)
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", COPIES)
def test_exactly_the_named_bytes_are_copied(
    name: str, data: st.DataObject, lengths: list[int]
) -> None:
    chosen, copy = choose_copy(name)
    assert chosen == name
    source = np.random.default_rng(0).integers(0, 256, ARENA, dtype=np.uint8)
    target = np.full(ARENA, GUARD, dtype=np.uint8)
    expected = target.copy()
    starts, at = [], 0
    for length in lengths:  # destinations must not overlap
        at += data.draw(st.integers(0, 70))
        starts.append(at)
        at += length
    froms = [data.draw(st.integers(0, ARENA - length)) for length in lengths]
    for start, origin, length in zip(starts, froms, lengths, strict=True):
        expected[start : start + length] = source[origin : origin + length]
    copy(
        np.uint64(source.ctypes.data) + np.array(froms, dtype=np.uint64),
        np.uint64(target.ctypes.data) + np.array(starts, dtype=np.uint64),
        np.array(lengths, dtype=np.uint64),
    )
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("direction", ["gather", "scatter"])
@pytest.mark.parametrize("length", [8, 512, 1000, 4096])
def test_runs_of_scattered_rows_are_copied(name: str, direction: str, length: int) -> None:
    _, copy = choose_copy(name)
    rng = np.random.default_rng(2)
    count = 40
    rows = rng.permutation(100)[:count].astype(np.uint64)
    scattered = np.uint64(length) * rows
    dense = np.uint64(length) * np.arange(count, dtype=np.uint64)
    source = rng.integers(0, 256, 100 * length, dtype=np.uint8)
    target = np.zeros_like(source)
    src, dst = (scattered, dense) if direction == "gather" else (dense, scattered)
    copy(
        np.uint64(source.ctypes.data) + src,
        np.uint64(target.ctypes.data) + dst,
        np.full(count, length, dtype=np.uint64),
    )
    expected = np.zeros_like(source)
    for one, other in zip(src.tolist(), dst.tolist(), strict=True):
        expected[other : other + length] = source[one : one + length]
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", COPIES)
@given(
    sources=st.lists(st.integers(0, 99), min_size=16, max_size=60),
    data=st.data(),
)
@settings(deadline=None)
def test_rows_of_one_length_arrive_in_any_order_of_both_sides(
    name: str, sources: list[int], data: st.DataObject
) -> None:
    _, copy = choose_copy(name)
    length = 16
    # Pieces of a counting row, cut and shuffled: runs on either side, and what only looks like one.
    cut = data.draw(st.integers(1, len(sources)))
    pieces = [list(range(100))[at : at + cut] for at in range(0, 100, cut)]
    targets = [row for piece in data.draw(st.permutations(pieces)) for row in piece]
    targets = targets[: len(sources)]
    if data.draw(st.booleans()):
        targets[1:-1] = data.draw(st.permutations(targets[1:-1]))
    source = np.arange(100 * length, dtype=np.uint32).astype(np.uint8).reshape(100, length)
    source[:, 0] = np.arange(100)
    target = np.zeros_like(source)
    expected = target.copy()
    expected[targets] = source[sources]
    copy(
        np.uint64(source.ctypes.data) + np.array(sources, dtype=np.uint64) * np.uint64(length),
        np.uint64(target.ctypes.data) + np.array(targets, dtype=np.uint64) * np.uint64(length),
        np.full(len(sources), length, dtype=np.uint64),
    )
    assert np.array_equal(target, expected)


@pytest.mark.parametrize("name", COPIES)
def test_nothing_to_copy_is_fine(name: str) -> None:
    _, copy = choose_copy(name)
    none = np.empty(0, dtype=np.uint64)
    copy(none, none, none)


def test_another_processor_falls_back_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel.compiled_copy.cache_clear()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert choose_copy("")[0] == "numpy"


def test_without_llvmlite_a_wanted_kernel_is_missed_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel.compiled_copy.cache_clear()
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with caplog.at_level(logging.WARNING):
        assert choose_copy("kernel")[0] == "numpy"
        assert choose_copy("")[0] == "numpy"
    assert len(caplog.records) == 1


def test_an_unknown_choice_is_named_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_copy("cuda")[0] in COPIES
    assert "cuda" in caplog.text
