"""docs/reference/properties.md names tests that exist, and the long run has all of their files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.laws.__main__ import WANTED_EXAMPLES, faults
from tests.laws.counter import passing
from tests.laws.files import LAWS, MACHINE
from tests.unit.docs.tables import DOCS, table

UNIT = DOCS.parent / "tests" / "unit"
ROWS = table("reference/properties.md", "Property", holds="Held by")
NAMED = re.findall(
    r"`([\w/]+\.py)::(\w+)`", (DOCS / "reference/properties.md").read_text(encoding="utf-8")
)


def defined(path: Path) -> set[str]:
    """Return the names of a file's functions, methods and classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_what_is_named_exists(path: str, name: str) -> None:
    assert name in defined(UNIT / path)


def test_every_property_names_what_holds_it() -> None:
    assert all("::" in row["Held by"] for row in ROWS)


def test_the_long_run_has_every_property_test_that_is_named() -> None:
    held = " ".join(row["Held by"] for row in ROWS)
    named = set(re.findall(r"`([\w/]+/test_\w+\.py)::", held))
    assert {f"tests/unit/{path}" for path in named} <= {MACHINE, *LAWS}


def test_examples_that_passed_are_counted_over_all_phases() -> None:
    statistics = """a.py::test:

  - during reuse phase (0.00 seconds):
    - Typical runtimes: < 1ms, of which < 1ms in data generation
    - 2 passing, 0 failing, and 7 invalid test cases
  - during generate phase (0.06 seconds):
    - Typical runtimes: < 1ms, of which < 1ms in data generation
    - 40 passing, 1 failing, and 3 invalid test cases
"""
    assert passing(statistics) == 42


@pytest.mark.parametrize(
    ("counts", "exit_codes", "fault"),
    [
        ({"a": WANTED_EXAMPLES - 1}, [0, 0], "less than"),
        ({"a": WANTED_EXAMPLES, "b": 0}, [0, 0], "b had no example"),
        ({"a": WANTED_EXAMPLES}, [0, 1], "pytest ended with 1"),
    ],
)
def test_a_long_run_that_shows_too_little_fails(
    counts: dict[str, int], exit_codes: list[int], fault: str
) -> None:
    [found] = faults(counts, exit_codes)
    assert fault in found


def test_a_long_run_with_enough_examples_is_right() -> None:
    assert faults({"a": WANTED_EXAMPLES - 1, "b": 1}, [0, 0]) == []
