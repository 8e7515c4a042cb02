"""``python -m tests.vllm``: the connector inside the engine's environment, then a real engine.

``python -m tests.vllm long``: engines of other shapes, each with a start of its own.

Ends with the line ``N passed, N failed`` over both, and exit code 1 if anything failed. A test that
was skipped did not show anything and counts as failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.vllm.engine import engine_environment
from tests.vllm.install import ROOT, environment_python

# Six minutes were seen with the rest of the test suite beside it; most of it is engines starting.
DEADLINE_SECONDS = 30 * 60


# What takes an engine of its own: two minutes and more each.
LONG = ("tests/vllm/test_several_groups.py",)


def main() -> int:
    """Run every part, also after one that failed."""
    if not environment_python().exists():
        print("no vLLM environment: `python3 tools/setup.py vllm` makes it", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        reports = Path(directory)
        runs = long_tests(reports) if sys.argv[1:] == ["long"] else tests(reports)
    passed, failed = (sum(column) for column in zip(*runs, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def tests(reports: Path) -> list[tuple[int, int]]:
    """Run what `make test` shows; return (passed, failed) of each part."""
    in_engine = ["-c", "tests/vllm/pytest.ini", "--rootdir", str(ROOT), "tests/vllm/in_engine"]
    return [
        run(
            [str(environment_python()), "-m", "pytest", *in_engine],
            report=reports / "in-engine.xml",
            extra=engine_environment(),
        ),
        on_engines("tests/vllm/test_slice.py", reports),
    ]


def long_tests(reports: Path) -> list[tuple[int, int]]:
    """Run what `make test-long` shows besides; return (passed, failed) of each part."""
    return [on_engines(path, reports) for path in LONG]


def on_engines(path: str, reports: Path) -> tuple[int, int]:
    """Run a test file that starts engines."""
    report = reports / f"{Path(path).stem}.xml"
    return run([sys.executable, "-m", "pytest", path], report=report, extra={})


def run(command: list[str], *, report: Path, extra: dict[str, str]) -> tuple[int, int]:
    """Run pytest, its output passed through; return (passed, failed), failed > 0 if it broke."""
    # In this process's group, so that whoever ends the group ends pytest; engines die with pytest.
    process = subprocess.Popen(
        [*command, f"--junit-xml={report}"], cwd=ROOT, env={**os.environ, **extra}
    )
    try:
        code = process.wait(timeout=DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"`{' '.join(command)}` ran past {DEADLINE_SECONDS} s", file=sys.stderr)
        code = 124
    finally:
        end(process)
    passed, failed = counts(report)
    return passed, failed or (1 if code else 0)


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt pytest, so that it ends what it started, then kill it."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)


def counts(report: Path) -> tuple[int, int]:
    """Return (passed, not passed) of a JUnit report; (0, 0) if pytest wrote none."""
    try:
        suites = ET.parse(report).getroot().iter("testsuite")
    except (OSError, ET.ParseError):
        return 0, 0
    total = failed = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += sum(int(suite.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
    return total - failed, failed


if __name__ == "__main__":
    sys.exit(main())
