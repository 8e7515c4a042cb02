"""Show the rows of the checklist: ``python -m tests.checklist [ROW ...] [--write]``.

Each row is one command, which is printed with the last line of its output. Ends with 1 if a row
does not hold. Rows that nothing shows are named and counted, and fail nothing.

Examples:
  python -m tests.checklist 3 14       two rows
  python -m tests.checklist --write    all, and write docs/checklist.md
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.checklist.rows import ROWS, Row

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "checklist.md"
# The slowest row starts a control plane and Helm several times, in two minutes of a busy machine.
DEADLINE_SECONDS: Final = 900

HEAD: Final = """# Checklist

What an operator that users love must do, each row by a command that ends with another code than 0
if it does not hold. `make checklist` runs them all and writes this page; `ROWS="3 14"` runs some.
What is not shown stands in the last column.

| Row | What holds | Command | Last output | Not shown |
|---|---|---|---|---|
"""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What came of a row. ``exit_code`` is ``None`` if nothing shows it."""

    row: Row
    exit_code: int | None
    output: str

    @property
    def verdict(self) -> str:
        """One word for a terminal."""
        return "not shown" if self.exit_code is None else "FAILS" if self.exit_code else "holds"


def command(row: Row) -> list[str]:
    """Return the command of a row as it is typed in the repository's root."""
    words = [".venv/bin/python", "-m", "pytest", "-q"]
    words += [f"tests/{path}" for path in row.tests]
    return [*words, "-k", row.expression] if row.expression else words


def typed(row: Row) -> str:
    """Return the line that runs a row's command in a shell."""
    before = f"HYPOTHESIS_PROFILE={row.examples} " if row.examples else ""
    return before + shlex.join(command(row))


def show(row: Row) -> Shown:
    """Run a row's command."""
    if not row.tests:
        return Shown(row=row, exit_code=None, output="")
    environment = {**os.environ}
    if row.examples:
        environment["HYPOTHESIS_PROFILE"] = row.examples
    words = [sys.executable, *command(row)[1:], "-o", f"timeout={DEADLINE_SECONDS}"]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Shown(row=row, exit_code=1, output=f"no end within {DEADLINE_SECONDS} s")
    if done.returncode:
        print(done.stdout + done.stderr, flush=True)
    lines = done.stdout.strip().splitlines() or ["no output"]
    return Shown(row=row, exit_code=done.returncode, output=lines[-1])


def page(results: Sequence[Shown]) -> str:
    """Return the documentation page."""
    lines = []
    for shown in results:
        row = shown.row
        line = f"`{typed(row)}`".replace("|", "\\|") if row.tests else ""
        lines.append(f"| {row.number} | {row.claim} | {line} | {shown.output} | {row.missing} |\n")
    return HEAD + "".join(lines) + f"\n{summary(results)}\n"


def summary(results: Sequence[Shown]) -> str:
    """Return the last line: how many rows hold, fail, and are not shown."""
    verdicts = [shown.verdict for shown in results]
    partly = sum(shown.exit_code == 0 and bool(shown.row.missing) for shown in results)
    return (
        f"{verdicts.count('holds')} rows hold, {partly} of them in part; "
        f"{verdicts.count('FAILS')} fail; {verdicts.count('not shown')} are not shown"
    )


def main() -> int:
    """Run the rows that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", type=int, metavar="ROW", help="numbers; default: all")
    parser.add_argument("--write", action="store_true", help="write docs/checklist.md")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - {row.number for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(map(str, sorted(unknown)))}")
    if arguments.write and arguments.rows:
        parser.error("the page has all rows: leave the numbers out, or --write")
    chosen = [row for row in ROWS if not arguments.rows or row.number in arguments.rows]
    results = []
    for row in chosen:
        began = time.monotonic()
        shown = show(row)
        took = f"{time.monotonic() - began:6.1f} s" if row.tests else ""
        print(f"{row.number:>3}  {shown.verdict:<9} {took:>8}  {row.claim}", flush=True)
        if row.missing:
            print(f"{'':24}not shown: {row.missing}", flush=True)
        results.append(shown)
    print(summary(results))
    if arguments.write:
        PAGE.write_text(page(results), encoding="utf-8")
    return 1 if any(shown.exit_code for shown in results) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
