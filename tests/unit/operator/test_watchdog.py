"""A process whose loop is blocked ends before another replica may lead."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import time
from kvoffload_operator.election import Elector, Record
from kvoffload_operator.lease import start_watchdog

elector = Elector(identity="me")
record = Record(holder="me", renewed="r", acquired="a", transitions=0)
elector.wrote(record, sent_at=time.monotonic() - {ago})
start_watchdog(elector)
time.sleep(3)
raise SystemExit(7)
"""


def run(ago: float) -> int:
    program = [sys.executable, "-c", BLOCKED.format(ago=ago)]
    return subprocess.run(program, timeout=60, check=False).returncode


def test_a_blocked_leader_past_its_deadline_is_ended() -> None:
    assert run(13.0) == 1


def test_a_leader_within_its_deadline_is_left_alone() -> None:
    assert run(0.0) == 7
