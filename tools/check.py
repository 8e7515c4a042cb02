"""Runs the stages of ``make test`` and its relatives, and says what ran and what could not.

A stage that fails does not stop the later ones: one run shows everything that is wrong.
Durations are remembered, so that a stage says how long it took last time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this file is run by its path, and tools/ is a package of the root

from tests.guest import packages as guest  # noqa: E402
from tests.laws.files import LAWS, MACHINE  # noqa: E402
from tests.vllm.install import cannot_install  # noqa: E402

from tools.progress import last_time, remember  # noqa: E402

PYTHON = sys.executable
BIN = Path(PYTHON).parent
# Four times what the slowest stage was seen to take; a stage that hangs must not hang CI.
STAGE_DEADLINE_SECONDS = 45 * 60
# With fifty times the examples of `make test`, the slowest property test runs for some minutes.
LONG_TEST_DEADLINE_SECONDS = 20 * 60


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One command. ``cannot_run`` returns why this machine cannot run it, or None."""

    name: str
    command: Sequence[str]
    cannot_run: Callable[[], str | None] = lambda: None
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a stage ended; ``exit_code`` None: it could not run, ``reason`` says why."""

    stage: Stage
    exit_code: int | None
    seconds: float = 0.0
    reason: str = ""


def needs_root() -> str | None:
    """Real memory cgroups and the node level need root."""
    return None if os.geteuid() == 0 else "needs root: it makes memory cgroups"


LINT = (
    Stage(name="ruff format", command=(str(BIN / "ruff"), "format", "--check", ".")),
    Stage(name="ruff check", command=(str(BIN / "ruff"), "check", ".")),
    Stage(name="mypy --strict", command=(str(BIN / "mypy"),)),
    Stage(name="import contracts", command=(str(BIN / "lint-imports"),)),
    Stage(name="generated CRDs", command=(PYTHON, "-m", "kvoffload_api.crd", "--check")),
)
UNIT = (Stage(name="unit tests", command=(PYTHON, "-m", "pytest", "-q", "tests/unit")),)
ORACLE_SLICE = Stage(
    name="oracle, slice", command=(PYTHON, "-m", "tests.oracle", "--select", "slice")
)
CLUSTER_BUILD = Stage(
    name="control plane binaries", command=(PYTHON, "-m", "tests.cluster", "build", "--helm")
)
INTEGRATION = (
    Stage(
        name="integration tests",
        command=(
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "-m",
            "not cgroup and not long",
            "tests/integration",
        ),
    ),
    Stage(
        name="integration tests with memory cgroups",
        command=(PYTHON, "-m", "pytest", "-q", "-m", "cgroup and not long", "tests/integration"),
        cannot_run=needs_root,
    ),
)
VLLM_ENVIRONMENT = Stage(
    name="vLLM environment",
    command=(PYTHON, "tools/setup.py", "vllm"),
    cannot_run=cannot_install,
)
VLLM = (
    VLLM_ENVIRONMENT,
    Stage(
        name="vLLM tests",
        command=(PYTHON, "-m", "tests.vllm"),
        cannot_run=cannot_install,
    ),
)
VLLM_LONG = Stage(
    name="vLLM tests, engines of other shapes",
    command=(PYTHON, "-m", "tests.vllm", "long"),
    cannot_run=cannot_install,
)
LONG = (
    Stage(name="oracle, all cases", command=(PYTHON, "-m", "tests.oracle")),
    Stage(name="the scheduler's laws, long", command=(PYTHON, "-m", "tests.laws")),
    Stage(
        name="long unit tests",
        command=(
            *(PYTHON, "-m", "pytest", "-q", "-o", f"timeout={LONG_TEST_DEADLINE_SECONDS}"),
            *(f"--ignore={path}" for path in (MACHINE, *LAWS)),
            "tests/unit",
        ),
        environment=(("HYPOTHESIS_PROFILE", "long"),),
    ),
    Stage(
        name="long integration tests",
        command=(PYTHON, "-m", "pytest", "-q", "-m", "long", "tests/integration"),
        cannot_run=needs_root,
    ),
    Stage(
        name="memory tests on cgroup v2, in a guest",
        command=(PYTHON, "-m", "tests.guest"),
        cannot_run=guest.cannot_run,
    ),
)
SUITES: dict[str, tuple[Stage, ...]] = {
    "lint": LINT,
    "unit": UNIT,
    "test-vllm": VLLM,
    "test": (*LINT, *UNIT, ORACLE_SLICE, CLUSTER_BUILD, *INTEGRATION, *VLLM),
    "test-long": (CLUSTER_BUILD, *LONG, VLLM_ENVIRONMENT, VLLM_LONG),
}


def main() -> int:
    """Run a suite; exit code 1 if a stage failed, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=sorted(SUITES))
    arguments = parser.parse_args()
    try:
        outcomes = [run(stage) for stage in SUITES[arguments.suite]]
    except KeyboardInterrupt:
        print("\nstopped by Ctrl-C; run it again to go on", file=sys.stderr)
        return 130
    return report(arguments.suite, outcomes)


def run(stage: Stage) -> Outcome:
    """Run one stage in a process group of its own, its output passed through."""
    reason = stage.cannot_run()
    if reason is not None:
        return Outcome(stage=stage, exit_code=None, reason=reason)
    print(f"\n==> {stage.name}{last_time(stage.name)}", flush=True)
    began = time.monotonic()
    process = subprocess.Popen(
        stage.command,
        cwd=ROOT,
        env={**os.environ, **dict(stage.environment)},
        start_new_session=True,
    )
    try:
        exit_code = process.wait(timeout=STAGE_DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{stage.name} ran past {STAGE_DEADLINE_SECONDS} s", file=sys.stderr)
        exit_code = 124
    finally:
        stop(process)
    seconds = time.monotonic() - began
    if exit_code == 0:
        remember(stage.name, seconds)
    return Outcome(stage=stage, exit_code=exit_code, seconds=seconds)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a stage's process group: first politely, then for good."""
    for number, patience_seconds in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        os.killpg(process.pid, number)
        try:
            process.wait(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            continue


def report(suite: str, outcomes: Sequence[Outcome]) -> int:
    """Print one line a stage, then what could not run and what was left out."""
    print(f"\nmake {suite}:")
    for outcome in outcomes:
        verdict = {None: "NOT RUN", 0: "ok"}.get(outcome.exit_code, f"FAILED ({outcome.exit_code})")
        print(f"  {verdict:<12} {outcome.seconds:7.1f} s  {outcome.stage.name}  {outcome.reason}")
    if suite == "test":
        print(
            "  not part of this: `make test-long` (all recorded cases, long property tests, "
            "long integration tests, cgroup v2 in a guest, vLLM with several KV cache groups) "
            "and `make bench`"
        )
    failed = sum(outcome.exit_code not in (None, 0) for outcome in outcomes)
    passed = sum(outcome.exit_code == 0 for outcome in outcomes)
    print(f"stages: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
