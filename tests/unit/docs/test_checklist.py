"""The checklist names tests that exist, and its page says what came of the rows."""

from __future__ import annotations

import pytest
from tests.checklist.__main__ import Shown, page, summary, typed
from tests.checklist.rows import ROWS, Row
from tests.unit.docs.tables import DOCS
from tests.unit.docs.test_properties import defined

TESTS = DOCS.parent / "tests"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_a_row_names_tests_that_exist_or_says_why_there_are_none(row: Row) -> None:
    assert row.tests or row.missing
    for test in row.tests:
        path, _, name = test.partition("::")
        assert not name or name in defined(TESTS / path), test


def test_rows_are_in_order_and_none_comes_twice() -> None:
    numbers = [row.number for row in ROWS]
    assert numbers == sorted(set(numbers))


def test_rows_that_hold_fail_and_are_not_shown_are_counted_apart() -> None:
    results = [
        Shown(row=Row(number=1, claim="a", tests=("x.py",)), exit_code=0, output="1 passed"),
        Shown(row=Row(number=2, claim="b", tests=("y.py",), missing="z"), exit_code=0, output=""),
        Shown(row=Row(number=3, claim="c", tests=("z.py",)), exit_code=5, output="no tests ran"),
        Shown(row=Row(number=4, claim="d", missing="no node"), exit_code=None, output=""),
    ]
    assert summary(results) == "2 rows hold, 1 of them in part; 1 fail; 1 are not shown"
    assert "| 3 | c | `.venv/bin/python -m pytest -q tests/z.py` | no tests ran |  |" in page(
        results
    )


def test_the_line_that_is_shown_is_the_one_to_type() -> None:
    row = Row(number=1, claim="a", tests=("x.py",), expression="a and b", examples="long")
    assert typed(row) == (
        "HYPOTHESIS_PROFILE=long .venv/bin/python -m pytest -q tests/x.py -k 'a and b'"
    )
