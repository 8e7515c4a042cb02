"""What the agent would see here: the chain of cgroups, the figures and the guard's verdict."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvoffload_agent.memory.guard import Verdict, decide, headroom, level_headroom, margin
from kvoffload_agent.memory.snapshot import MIB, Level, Snapshot


def report(snapshot: Snapshot, *, wanted: int) -> dict[str, Any]:
    """Return the diagnosis as JSON; bytes throughout."""
    room = headroom(snapshot)
    return {
        "levels": [_level(level) for level in snapshot.bounds()],
        "unlimited": [level.path for level in snapshot.levels if level.limit is None],
        "problems": list(snapshot.problems),
        "headroom": {"bytes": room.bytes, "limitedBy": room.limited_by, "limit": room.limit},
        "wanted": wanted,
        "verdict": verdict_json(decide(snapshot, wanted, None)),
    }


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict with its name."""
    return {"answer": type(verdict).__name__, **asdict(verdict)}


def _level(level: Level) -> dict[str, Any]:
    found: dict[str, Any] = {
        "path": level.path,
        "cgroup": level.version or None,
        "limit": level.limit,
        "usage": level.usage,
        "inactiveFile": level.inactive_file,
        "memoryHigh": level.high,
        "margin": margin(level.limit) if level.limit is not None else None,
        "headroom": level_headroom(level),
    }
    if level.problem:
        found["problem"] = level.problem
    return found


def mebibytes(value: int | None) -> str:
    """Return bytes for people."""
    return "-" if value is None else f"{value / MIB:,.0f} MiB"
