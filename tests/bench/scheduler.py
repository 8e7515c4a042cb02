"""The scheduler against vLLM's own, in one process of vLLM's environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.harness.processes import Process, die_with_parent
from tests.vllm import install

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_SECONDS = 30.0
# A quiet machine needs 2 minutes.
DEADLINE_SECONDS = 900
# The prompt of the benchmark has 32 MiB.
HOST_MEMORY = "256Mi"


def report() -> None:
    """Print one line a row: vLLM's time, ours, their ratio, the largest ratio allowed.

    Raises:
        SystemExit: vLLM is not installed, or something failed; a missed goal fails nothing.
    """
    python = install.environment_python()
    if not python.exists():
        raise SystemExit(
            "not run, every row of the scheduler: vLLM is not installed. Install it once (6 GB):\n"
            "    python tests/vllm/install.py"
        )
    with tempfile.TemporaryDirectory(prefix="kvo") as directory, agent(Path(directory)) as socket:
        rows = run(python, socket)
    missed = [row["name"] for row in rows if not row["ok"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} goals reached", flush=True)


class agent:  # noqa: N801 - used as a function is
    """A real agent whose policy lets everything be stored."""

    def __init__(self, directory: Path) -> None:
        policies = directory / "policies"
        policies.mkdir()
        policy = {
            "apiVersion": "kvoffload.io/v1alpha1",
            "kind": "ClusterKVOffloadPolicy",
            "metadata": {"name": "default"},
            "spec": {"nodeBudget": {"hostMemory": HOST_MEMORY}},
        }
        (policies / "default.yaml").write_text(yaml.safe_dump(policy))
        self._socket = directory / "agent.sock"
        command = [str(Path(sys.executable).with_name("kvoffload-agent")), "run"]
        command += ["--policies", str(policies), "--socket", str(self._socket), "--http", ""]
        self._process = Process(command, name="agent", log=directory / "agent.log")

    def __enter__(self) -> Path:
        self._process.wait_until(
            self._socket.exists, what="its socket", deadline_seconds=START_DEADLINE_SECONDS
        )
        return self._socket

    def __exit__(self, *_: object) -> None:
        self._process.stop()


def run(python: Path, socket: Path, *options: str) -> list[dict[str, Any]]:
    """Measure in vLLM's environment, and print rows as they come."""
    command = [str(python), "-m", "tests.bench.scheduler_peers.rows", "--socket", str(socket)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in (".", "crds", "agent")),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
    }
    print(f"{'':58} {'vLLM ms':>9} {'ours ms':>9} {'ratio':>7} {'goal':>7}")
    rows = []
    with subprocess.Popen(
        [*command, *options],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one prctl call, no lock taken
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                rows.append(judged(json.loads(line)))
                print(text_of(rows[-1]), flush=True)
            else:
                print(line, end="", file=sys.stderr, flush=True)
        code = process.wait(timeout=DEADLINE_SECONDS)
    if code:
        raise SystemExit(f"the measurement ended with {code}; its output is above")
    return rows


def judged(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add ``value``, which is compared with the goal, and ``ok``."""
    value = row["value"] if "value" in row else row["ours"] / row["theirs"]
    return {**row, "value": value, "ok": value <= row["goal"]}


def text_of(row: Mapping[str, Any]) -> str:
    """Return a row's line."""
    theirs = row.get("theirs")
    before = f"{theirs:9.3f}" if theirs is not None else f"{'-':>9}"
    verdict = "ok" if row["ok"] else "MISSED"
    if "unit" in row:
        figure = f"{row['value']:.2f} {row['unit']}"
        return f"{row['name']:58} {before} {figure:>17} {row['goal']:5g} {row['unit']} {verdict}"
    ratio = f"{row['ours']:9.3f} {row['value']:7.3f} {row['goal']:7.3f}"
    return f"{row['name']:58} {before} {ratio} {verdict}"
