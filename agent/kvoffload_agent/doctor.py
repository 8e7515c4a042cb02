"""What the agent would see here: the chain of cgroups, the figures and the guard's verdict."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

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


def print_report(found: dict[str, Any]) -> None:
    """Print what ``report`` returned, for people."""
    table = Table(box=None, pad_edge=False)
    for name in ("limit of", "limit", "usage", "inactive file", "margin", "headroom"):
        table.add_column(name, justify="left" if name == "limit of" else "right")
    for level in found["levels"]:
        table.add_row(
            level["path"] + (f" ({level['problem']})" if "problem" in level else ""),
            mebibytes(level["limit"]),
            mebibytes(level["usage"]),
            mebibytes(level["inactiveFile"]),
            mebibytes(level["margin"]),
            mebibytes(level["headroom"]),
        )
    console = Console(width=max(100, int(os.environ.get("COLUMNS") or 0)), highlight=False)
    console.print(table)
    for path in found["unlimited"]:
        console.print(f"unlimited: {path}")
    for problem in found["problems"]:
        console.print(f"problem: {problem}")
    verdict = found["verdict"]
    console.print(f"{mebibytes(found['wanted'])} asked: {verdict['answer']} ({_meaning(verdict)})")


def _meaning(verdict: dict[str, Any]) -> str:
    """Return a verdict in words, for who does not know the names."""
    match verdict["answer"]:
        case "Admit":
            return "all of it may be taken"
        case "Shrink":
            limit = verdict["limited_by"]
            return f"only {mebibytes(verdict['bytes'])} may be taken, limited by {limit}"
        case _:
            return f"nothing may be taken: {verdict['reason']}"
