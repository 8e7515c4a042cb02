"""Try the scheduler's laws with many random examples: ``python -m tests.laws``.

Two pytest processes: the stateful machine and the laws of the tiers, and the laws of the scheduler.
Ends with 1 if a law fails, if one was tried with no example, or if all were with too few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.laws.files import LAWS, MACHINE

ROOT: Final = Path(__file__).parents[2]
# What the scheduler's issue asks for.
WANTED_EXAMPLES: Final = 20_000
# Some seven times what the slowest of them takes, the machine's, with two cores shared with others.
TEST_DEADLINE_SECONDS: Final = 40 * 60


def start(files: Sequence[str], counts: Path) -> subprocess.Popen[str]:
    """Begin to run tests with the long profile."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.laws.counter"]
    options = ["-o", f"timeout={TEST_DEADLINE_SECONDS}", "--examples-to", str(counts)]
    return subprocess.Popen(
        [*command, *options, *files],
        cwd=ROOT,
        env={**os.environ, "HYPOTHESIS_PROFILE": "long"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def faults(counts: Mapping[str, int], exit_codes: Sequence[int]) -> list[str]:
    """Return what is wrong with a run, nothing if it shows that the laws hold."""
    found = [f"pytest ended with {code}" for code in exit_codes if code]
    found += [f"{test} had no example" for test, count in counts.items() if not count]
    total = sum(counts.values())
    if total < WANTED_EXAMPLES:
        found.append(f"{total:,} examples are less than {WANTED_EXAMPLES:,}")
    return found


def main() -> int:
    """Run, and print the examples of each law and of all."""
    counts: dict[str, int] = {}
    exit_codes = []
    with tempfile.TemporaryDirectory() as directory:
        tiers = tuple(path for path in LAWS if path.startswith("tests/unit/tiers/"))
        shards = [(MACHINE, *tiers), tuple(path for path in LAWS if path not in tiers)]
        reports = [Path(directory) / f"{number}.json" for number in range(len(shards))]
        running = [start(files, report) for files, report in zip(shards, reports, strict=True)]
        try:
            for process, report in zip(running, reports, strict=True):
                print(process.communicate()[0], flush=True)
                exit_codes.append(process.returncode)
                if report.exists():
                    counts |= json.loads(report.read_text(encoding="utf-8"))
        finally:
            for process in running:
                process.kill()
    for test, count in sorted(counts.items()):
        print(f"{count:>8,}  {test}")
    print(f"{sum(counts.values()):>8,}  examples in all")
    wrong = faults(counts, exit_codes)
    for line in wrong:
        print(f"FAILED: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
