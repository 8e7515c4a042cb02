"""Run the memory tests on a pure cgroup v2 tree, in a small emulated machine.

Exit code 1 if a test failed or was skipped, 2 if there was no result.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.guest import machine, packages, tree
from tools.progress import step


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guest", description=__doc__)
    parser.add_argument(
        "-k",
        default="",
        metavar="EXPRESSION",
        help="only these, as for pytest; a file's name is one too",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return run(select=arguments.k)
    except packages.GuestError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def run(*, select: str) -> int:
    reason = packages.cannot_run()
    if reason is not None:
        raise packages.GuestError(reason)
    unpacked = packages.prepare()
    outcomes: list[str] = []

    def tell(result: machine.Result) -> None:
        outcomes.append(result["outcome"])
        print(f"  {result['outcome']:<8}{result.get('seconds', 0):6.1f} s  {result['test']}")
        if result["outcome"] != "passed":
            print(result["detail"])
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="kvoffload-guest-") as name:
        folder = Path(name)
        with step("guest's file system"):
            disk = tree.build(unpacked, folder, select=select)
        print("boot, and the tests in the guest ...", flush=True)
        code = machine.run(unpacked, disk, folder, tell=tell)
        if code:
            print(machine.ends(folder))
    passed = outcomes.count("passed")
    print(f"cgroup v2 guest: {passed} passed, {len(outcomes) - passed} not")
    return 0 if code == 0 and outcomes and passed == len(outcomes) else 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
