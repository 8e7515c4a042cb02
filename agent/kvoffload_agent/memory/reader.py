"""Takes the memory snapshot from /proc and the cgroup file systems."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvoffload_agent.memory.cgroups import read_levels
from kvoffload_agent.memory.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReader:
    """Reads a fresh snapshot at each call: limits change while a process runs.

    ``root``: where the file system begins; tests give a folder of recorded files.
    ``explicit_limit``: bytes, from ``--memory-limit`` or ``KVOFFLOAD_MEMORY_LIMIT`` (Downward API
    ``limits.memory``), which also sees what a cgroup namespace hides.
    """

    root: Path = Path("/")
    explicit_limit: int | None = None

    def __call__(self) -> Snapshot:
        """Return the snapshot of this moment; takes under 1 ms and never raises."""
        levels, problems = read_levels(self.root)
        figures, meminfo_problems = self._meminfo()
        return Snapshot(
            levels=levels,
            available=figures.get("MemAvailable"),
            total=figures.get("MemTotal"),
            explicit_limit=self.explicit_limit,
            resident=self._resident(),
            problems=(*problems, *meminfo_problems),
        )

    def _meminfo(self) -> tuple[dict[str, int], tuple[str, ...]]:
        try:
            text = (self.root / "proc/meminfo").read_text()
        except (OSError, UnicodeDecodeError) as error:
            return {}, (f"MemAvailable is unknown: {error}",)
        return _kibibytes(text), ()

    def _resident(self) -> int:
        try:
            text = (self.root / "proc/self/status").read_text()
        except (OSError, UnicodeDecodeError):
            return 0
        return _kibibytes(text).get("VmRSS", 0)


def _kibibytes(text: str) -> dict[str, int]:
    """Return ``Name: N kB`` lines as bytes."""
    figures = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit.strip() == "kB" and number.isascii() and number.isdigit():
            figures[name] = int(number) * 1024
    return figures
