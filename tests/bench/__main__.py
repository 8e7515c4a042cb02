"""Run the benchmarks: ``python -m tests.bench [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from tests.bench import copies, propagation, scheduler

BENCHMARKS: dict[str, Callable[[], None]] = {
    "copies": copies.report,
    "propagation": propagation.report,
    "scheduler": scheduler.report,
}


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {list(BENCHMARKS)}")
    for name in arguments.names or BENCHMARKS:
        print(f"==> {name}", flush=True)
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
