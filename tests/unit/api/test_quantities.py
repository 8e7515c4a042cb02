"""Byte quantities: one grammar, one parser, and nothing that reads differently elsewhere."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_api.quantity import (
    MAXIMUM_BYTES,
    MINIMUM_BYTES,
    QuantityError,
    format_quantity,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("30Gi", 32212254720),  # report B01
        ("1Mi", 2**20),
        ("1024Ki", 2**20),
        ("1048576", 2**20),
        ("1024Ti", 2**50),
        ("1049k", 1_049_000),
        ("2M", 2_000_000),
        ("500G", 500 * 10**9),
        ("3T", 3 * 10**12),
        ("999999999999999", 999_999_999_999_999),
    ],
)
def test_a_quantity_is_read_to_the_byte(text: str, size: int) -> None:
    assert parse_quantity(text) == size


@pytest.mark.parametrize(
    "text",
    [
        # B01, B02, B08, B10
        "30GB",
        "30 Gi",
        "0.5",
        "-5",
        "-1Gi",
        "1500m",
        "1e3",
        "1E",
        "0",
        "",
        "64",
        # neighbours of these
        "30gi",
        "+1Gi",
        "01Gi",
        " 1Gi",
        "1Gi\n",
        "1Gi ",
        "1Pi",
        "1_000Mi",
        "1,5Gi",
        "٣Gi",
        "1023Ki",
        "1048575",
        "1025Ti",
        "999999999999999999T",
        "9999999999999999999",
    ],
)
def test_anything_else_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(QuantityError, match=r"Ki, Mi, Gi, Ti .* such as 64Gi"):
        parse_quantity(text)


@pytest.mark.parametrize("value", [64, 64.0, True, None, ["64Gi"]])
def test_a_number_is_no_quantity(value: object) -> None:
    with pytest.raises(QuantityError, match="must be a string"):
        parse_quantity(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "text"),
    [(2**30, "1Gi"), (2**50, "1024Ti"), (10**9, "1G"), (2**20 + 1, "1048577"), (2**20, "1Mi")],
)
def test_bytes_are_written_as_short_as_exactness_allows(size: int, text: str) -> None:
    assert format_quantity(size) == text


@pytest.mark.parametrize("size", [-1, 0, MINIMUM_BYTES - 1, MAXIMUM_BYTES + 1])
def test_bytes_out_of_bounds_have_no_quantity(size: int) -> None:
    with pytest.raises(QuantityError):
        format_quantity(size)


@given(st.integers(MINIMUM_BYTES, MAXIMUM_BYTES))
def test_writing_and_reading_gives_the_same_bytes(size: int) -> None:
    assert parse_quantity(format_quantity(size)) == size


@given(st.text(max_size=24))
def test_any_text_is_read_or_refused_but_never_crashes(text: str) -> None:
    with contextlib.suppress(QuantityError):
        assert MINIMUM_BYTES <= parse_quantity(text) <= MAXIMUM_BYTES
