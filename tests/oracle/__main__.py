"""Replay every case under a directory: ``python -m tests.oracle --cases DIR [--select slice]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.oracle.cases import CASES, SELECTIONS, load, outcome


def main() -> int:
    """Print failing cases and a last line ``N passed, N failed``."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("--cases", type=Path, default=CASES, help="directory of JSON files")
    parser.add_argument("--select", choices=sorted(SELECTIONS), default="all")
    arguments = parser.parse_args()
    chosen = SELECTIONS[arguments.select]
    passed = failed = 0
    for path in sorted(arguments.cases.rglob("*.json")):
        try:
            case = load(path)
            if not chosen(case):
                continue
            fault = outcome(case)
        except Exception as error:  # noqa: BLE001 - a case that can't be read has failed
            fault = f"unreadable: {type(error).__name__}: {error}"
        if fault:
            failed += 1
            print(f"FAILED {path}: {fault}")
        else:
            passed += 1
    if not passed and not failed:
        print(f"no case under {arguments.cases}")
        failed = 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
