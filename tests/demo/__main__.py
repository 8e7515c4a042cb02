"""Two engines share one agent under policies, first without Kubernetes, then with it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from tests.cluster.binaries import MissingBinaryError
from tests.demo import act_one, act_two
from tests.demo.verdict import Check
from tests.harness.installation import ROOT
from tests.harness.processes import NotReadyError, Process

EXAMPLES = """\
examples:
  make demo              both acts
  make demo ACT=1        only the first, without Kubernetes
  make demo POISON=1     spoils loaded bytes; the demo must end with exit code 1 (make with 2)
  make demo ENGINE=vllm  the second act with the real engine

exit code: 0 bytes were loaded and every byte was right; 1 something did not hold; 130 Ctrl-C;
make reports every failure with 2
"""
# Enough for a gigabyte with some margin; see act_one.AT_LEAST_BYTES.
REQUESTS_ACT_ONE = 1400
REQUESTS_ACT_TWO = 1000
LOG_WIDTH = 140


def main() -> int:
    """Play the acts; returns the exit code."""
    arguments = parse()
    console = make_console()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="kvoffload-demo-") as name:
            checks = play(console, Path(name), arguments)
    except KeyboardInterrupt:
        console.print("\nstopped; everything that was started is gone")
        return 130
    except (NotReadyError, MissingBinaryError, TimeoutError) as error:
        console.print(f"[red]the demo could not go on:[/red] {error}", markup=True)
        return 1
    seconds = time.monotonic() - began
    return summary(console, checks, seconds=seconds, poison=arguments.poison)


def make_console() -> Console:
    """Return a console; where there is no terminal, as wide as the table needs."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.demo",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--act", type=int, choices=[1, 2], help="only this act")
    parser.add_argument("--poison", action="store_true", help="spoil loaded bytes: must end with 1")
    parser.add_argument("--engine", choices=["reference", "vllm"], default="reference")
    return parser.parse_args()


def play(
    console: Console, directory: Path, arguments: argparse.Namespace
) -> dict[str, Sequence[Check]]:
    """Play the chosen acts, building the cluster's binaries beside the first."""
    if arguments.engine == "vllm":
        from tests.demo import vllm_engine

        set_up("cluster", "vllm")
        checks = vllm_engine.play(console, directory=directory, poison=arguments.poison)
        return {"the real engine": checks}
    acts: dict[str, Sequence[Check]] = {}
    build = start_build(directory) if arguments.act != 1 else None
    try:
        if arguments.act != 2:
            folder = directory / "one"
            folder.mkdir()
            acts["act one"] = act_one.play(
                console, directory=folder, requests=REQUESTS_ACT_ONE, poison=arguments.poison
            )
            if not all(check.holds for check in acts["act one"]):
                return acts
        if build is not None:
            wait_for_build(console, build)
            folder = directory / "two"
            folder.mkdir()
            acts["act two"] = act_two.play(
                console, directory=folder, requests=REQUESTS_ACT_TWO, poison=arguments.poison
            )
    finally:
        if build is not None:
            build.stop()
    return acts


def set_up(*features: str) -> None:
    """Make what the real engine needs, with its progress on the terminal.

    Raises:
        NotReadyError: it could not be made.
    """
    for feature in features:
        command = [sys.executable, str(ROOT / "tools" / "setup.py"), feature]
        if subprocess.run(command, check=False).returncode != 0:
            raise NotReadyError(f"`{' '.join(command)}` failed")


def start_build(directory: Path) -> Process:
    """Build the control plane's binaries in the background if they are not there yet."""
    return Process(
        [sys.executable, "-m", "tests.cluster", "build"],
        name="build of the control plane",
        log=directory / "build.log",
    )


def wait_for_build(console: Console, build: Process) -> None:
    """Show what is being built until it is done.

    Raises:
        NotReadyError: the build failed.
    """
    shown = 0
    while build.running:
        shown = _show_new(console, build, shown)
        try:
            build.popen.wait(timeout=1)
        except subprocess.TimeoutExpired:
            continue
    _show_new(console, build, shown)
    if build.popen.returncode != 0:
        raise NotReadyError(f"the control plane could not be built:\n{build.last_lines()}")


def _show_new(console: Console, build: Process, shown: int) -> int:
    lines = build.log.read_text(errors="replace").splitlines()
    for line in lines[shown:]:
        console.print(f"  build: {line}", style="dim")
    return len(lines)


def summary(
    console: Console, acts: Mapping[str, Sequence[Check]], *, seconds: float, poison: bool
) -> int:
    """Print what held and what did not, and how to go on."""
    console.rule("[bold]Summary")
    for act, checks in acts.items():
        console.print(f"[bold]{act}[/bold]")
        for check in checks:
            mark = "[green]ok[/green]    " if check.holds else "[red]FAILED[/red]"
            console.print(f"{mark} {check.statement}")
    failed = not acts or any(not check.holds for checks in acts.values() for check in checks)
    console.print(f"\n{seconds:.0f} s. {how_to_go_on(failed=failed, poison=poison)}")
    return 1 if failed else 0


def how_to_go_on(*, failed: bool, poison: bool) -> str:
    """Return the last sentence."""
    if failed and poison:
        return "Bytes were spoiled on purpose, and the demo fails as it must."
    if failed:
        return "The demo failed, and no later act was played; `make test` narrows it down."
    return "On a cluster of your own: docs/how-to/cluster.md"


if __name__ == "__main__":
    sys.exit(main())
