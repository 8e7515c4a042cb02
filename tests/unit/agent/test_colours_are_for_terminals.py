"""Console logs have colours on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import structlog
from kvoffload_agent import logs
logs.configure(console=True, debug=False)
structlog.get_logger("test").warning("told", err="why")
"""
ESCAPE = b"\x1b["


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "TERM": "xterm", **extra}


def on_terminal(**extra: str) -> bytes:
    """Return what a terminal gets to see."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stderr=theirs,
            env=environment(**extra),
            timeout=60,
            check=True,
        )
        # It is in the terminal's buffer already: the program has ended.
        return os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_pipe_gets_plain_text() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        env=environment(),
        timeout=60,
        check=True,
    )

    assert b"told" in done.stderr
    assert b"err=why" in done.stderr
    assert ESCAPE not in done.stderr


def test_a_terminal_gets_colours() -> None:
    assert ESCAPE in on_terminal()


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_who_sets_no_color_gets_none(value: str, *, coloured: bool) -> None:
    shown = on_terminal(NO_COLOR=value)

    assert b"told" in shown
    assert (ESCAPE in shown) is coloured
