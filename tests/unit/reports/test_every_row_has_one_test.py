"""Each reported row about caps, layouts and lifecycles is one test, or named as missing."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
ROWS = TESTS / "data" / "reports" / "reports.jsonl"
STATUS = TESTS.parent / "docs" / "status.md"
FOLDERS = (
    TESTS / "unit" / "reports",
    TESTS / "integration" / "reports",
    TESTS / "integration" / "slice",
)
CATEGORIES = ("caps", "layout", "lifecycle")

# Rows that need a part which is not built; docs/status.md says the same.
NOT_YET: dict[str, str] = {}


def rows() -> set[str]:
    lines = ROWS.read_text(encoding="utf-8").splitlines()
    return {row["id"] for row in map(json.loads, lines) if row["cat"] in CATEGORIES}


def names() -> Iterator[str]:
    """Yield the names of all tests in the folders of reports."""
    for folder in FOLDERS:
        for path in sorted(folder.glob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name


def test_every_row_is_one_test_or_named_as_missing() -> None:
    found = (re.match(r"test_(b\d\d)_", name) for name in names())
    tests = Counter(match[1].upper() for match in found if match)
    assert {row for row, count in tests.items() if count > 1} == set()
    assert set(tests) | set(NOT_YET) == rows()
    assert set(tests) & set(NOT_YET) == set()


def test_what_is_missing_is_told_to_readers() -> None:
    text = STATUS.read_text(encoding="utf-8")
    assert {row for row in NOT_YET if f"`{row}`" not in text} == set()
