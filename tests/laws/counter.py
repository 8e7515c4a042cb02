"""A pytest plug-in that counts the examples of each property test: ``-p tests.laws.counter``."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from pathlib import Path

import pytest

# Of Hypothesis' own statistics of a test, one for each phase. Examples that the test rejected, and
# those with which it failed, are other numbers.
_PASSING = re.compile(r"^ +- (\d+) passing", re.MULTILINE)
_COUNTS: dict[str, int] = {}


def passing(statistics: str) -> int:
    """Return how many examples passed, of the text that Hypothesis makes for a test."""
    return sum(int(count) for count in _PASSING.findall(statistics))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--examples-to``."""
    parser.addoption("--examples-to", type=Path, help="write examples by test, as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Count the examples of one test, if it has any."""
    try:
        return (yield)
    finally:
        statistics = getattr(item, "hypothesis_statistics", None)
        if statistics is not None:
            _COUNTS[item.nodeid] = passing(statistics)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over the counts."""
    path = session.config.getoption("--examples-to")
    if path is not None:
        path.write_text(json.dumps(_COUNTS), encoding="utf-8")
