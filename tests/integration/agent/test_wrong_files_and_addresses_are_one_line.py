"""What a person gives wrongly ends with one line that says what, where and what to do."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests.integration.agent.agent import PROGRAM

OPERATOR = PROGRAM.with_name("kvoffload-operator")
PLUGIN = PROGRAM.with_name("kubectl-kvoffload")
FILES = {
    "binary": b"\x8f\xff\x00" * 100,
    "empty": b"",
    "a list": b"- 1\n- 2\n",
    "deep": b"[" * 5000,
    "half": b"apiVersion: v1\ncurrent-context: x\n",
}


def run(*command: str | Path, kubeconfig: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_a_broken_kubeconfig_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kubeconfig"
    path.write_bytes(content)
    for ended, code in [
        (run(PROGRAM, "run", "--kubeconfig", path), 2),
        (run(OPERATOR, "run", "--kubeconfig", path), 3),
        (run(PLUGIN, "nodes", kubeconfig=str(path)), 3),
    ]:
        assert ended.returncode == code, ended.stderr
        assert "kubeconfig" in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:²", "nonsense", "unix:{file}"])
def test_an_address_that_cannot_be_is_refused_and_no_file_is_lost(
    tmp_path: Path, address: str
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    ended = run(
        PROGRAM, "run", "--policies", tmp_path, "--host-memory", "8Mi",
        "--socket", tmp_path / "s", "--http", address.format(file=file),
    )  # fmt: skip
    assert ended.returncode == 69, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("kvoffload-agent: cannot serve at")
    assert "Traceback" not in ended.stderr
    assert file.read_text() == "mine"


def test_a_port_in_use_is_named_with_the_option_that_chooses_another(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run(
            PROGRAM, "run", "--policies", tmp_path, "--host-memory", "8Mi",
            "--socket", tmp_path / "s", "--http", address,
        )  # fmt: skip
    assert ended.returncode == 69, ended.stderr
    told = ended.stderr.splitlines()[-1]
    assert told.startswith(f"kvoffload-agent: cannot serve at {address}: the address is in use")
    assert "--http" in told
    assert "Errno" not in told
