"""One command makes a checkout ready, or says what the machine lacks."""

from __future__ import annotations

import ast
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tools import setup

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "setup.py"


def test_an_old_python_is_told_which_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"needs Python 3.11 or later; this is Python 3.9"):
        runpy.run_path(str(SCRIPT))


def test_an_old_python_can_read_the_script_as_far_as_that() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))


def test_a_changed_lock_makes_the_environment_out_of_date(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "dev.txt"
    lock.write_text("a==1\n")
    monkeypatch.setattr(setup, "LOCK_FILE", lock)
    monkeypatch.setattr(setup, "STAMP", tmp_path / "stamp")
    assert not setup.is_current()
    setup.STAMP.write_text(setup.digest())
    assert setup.is_current()
    lock.write_text("a==2\n")
    assert not setup.is_current()


def test_an_index_that_cannot_be_reached_is_named_as_the_likely_reason(tmp_path: Path) -> None:
    for name in ("tools", "requirements"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "tools" / "setup.py"), "env"],
        env={
            **os.environ,
            "KVOFFLOAD_CACHE": str(tmp_path / "cache"),
            "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # the discard port: nobody listens
            "PIP_RETRIES": "0",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "If the package index cannot be reached: set PIP_INDEX_URL" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".venv").exists()
