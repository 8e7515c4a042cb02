"""A control plane leaves no process and no file, however its owner ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.api import wait_until
from tests.cluster.controlplane import ControlPlane
from tests.harness.processes import NotReadyError, Process

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[3]
# kube-apiserver, etcd and kube-controller-manager, and the shell that removes their folder.
PROGRAMS = 4


def running_in(directory: Path) -> list[str]:
    """Return the command lines that name the folder: every program of a control plane does."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        if str(directory) in command:
            found.append(command)
    return found


def start_owner(log: Path) -> tuple[Process, Path]:
    """Run ``python -m tests.cluster up`` and return it with its control plane's folder."""
    owner = Process(
        [sys.executable, "-u", "-m", "tests.cluster", "up"], name="owner", log=log, cwd=ROOT
    )
    try:
        owner.wait_until(
            lambda: "Ctrl-C ends it" in log.read_text(), what="up", deadline_seconds=120
        )
    except NotReadyError:
        owner.kill()
        raise
    found = re.search(r"KUBECONFIG=(\S+)", log.read_text())
    assert found is not None
    return owner, Path(found.group(1)).parent


def test_after_stop_nothing_is_left() -> None:
    with ControlPlane.start() as plane:
        directory = plane.directory
        assert len(running_in(directory)) == PROGRAMS
    assert not running_in(directory)
    assert not directory.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_ctrl_c_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    owner, directory = start_owner(tmp_path / "up.log")
    with owner:
        owner.popen.send_signal(number)
        assert owner.popen.wait(timeout=30) == 0, owner.last_lines()
    assert not running_in(directory)
    assert not directory.exists()


def test_after_its_owner_is_killed_nothing_is_left(tmp_path: Path) -> None:
    owner, directory = start_owner(tmp_path / "up.log")
    assert len(running_in(directory)) == PROGRAMS
    owner.popen.kill()
    owner.popen.wait(timeout=10)
    wait_until(
        lambda: not running_in(directory) and not directory.exists(),
        what="the end of everything",
        deadline_seconds=15,
    )
    owner.stop()


def test_a_printed_kubeconfig_works_from_another_process(control_plane: ControlPlane) -> None:
    done = subprocess.run(
        [str(control_plane.programs["kubectl"]), "get", "--raw", "/readyz"],
        env=control_plane.kubectl_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == "ok"
