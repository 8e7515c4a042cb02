"""In the guest: runs the suite and writes each result as a JSON line to a serial port."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

SUITE = (
    "tests/guest/suite",
    "tests/integration/agent/test_the_arena_stays_within_its_cgroup.py",
    "tests/integration/agent/test_memory_pressure_is_met_before_the_kernel_kills.py",
)


# An emulated test takes one to two minutes beside other work, most of them its agent's start.
TEST_SECONDS = 900


class Reporter:
    """A pytest plug-in."""

    def __init__(self, port: Path) -> None:
        self._port = port.open("w", encoding="utf-8")
        self._told: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        if report.nodeid in self._told and report.passed:
            return
        self._told.add(report.nodeid)
        self.tell(
            {
                "test": report.nodeid.partition("::")[2],
                "outcome": report.outcome,
                "seconds": round(report.duration, 1),
                "detail": f"{report.longrepr}\n{report.capstdout}" if report.longrepr else "",
            }
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell({"test": report.nodeid, "outcome": "failed", "detail": str(report.longrepr)})

    def tell(self, line: dict[str, Any]) -> None:
        print(json.dumps(line), file=self._port, flush=True)


def main() -> None:
    port, select = sys.argv[1:]
    reporter = Reporter(Path(port))
    options = ["-q", "-p", "no:cacheprovider", "--basetemp=/tmp/pytest", "-k", select]
    code = pytest.main([*options, f"--timeout={TEST_SECONDS}", *SUITE], plugins=[reporter])
    reporter.tell({"exit_code": int(code)})


if __name__ == "__main__":
    main()
