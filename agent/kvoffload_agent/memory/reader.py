"""Takes the memory snapshot from /proc and the cgroup file systems."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvoffload_agent.memory.cgroups import read_levels
from kvoffload_agent.memory.hosttree import HostTree
from kvoffload_agent.memory.snapshot import Level, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotReader:
    """Reads a fresh snapshot at each call: limits change while a process runs.

    ``root``: where the file system begins; tests give a folder of recorded files.
    ``explicit_limit``: bytes, from ``--memory-limit`` or ``KVOFFLOAD_MEMORY_LIMIT`` (Downward API
    ``limits.memory``), which also sees what a cgroup namespace hides.
    ``limit_file``: a file with the same number, read each time: a Downward API volume follows a
    pod that is resized in place, an environment variable does not.
    ``host_cgroups``: where the host's cgroup tree is mounted, with the ancestors that a cgroup
    namespace hides.
    What is named and cannot be read permits nothing.
    """

    root: Path = Path("/")
    explicit_limit: int | None = None
    limit_file: Path | None = None
    host_cgroups: Path | None = None
    _tree: HostTree | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Keep where the own group was found in the host's tree."""
        if self.host_cgroups is not None:
            tree = HostTree(tree=self.host_cgroups, root=self.root)
            object.__setattr__(self, "_tree", tree)

    def __call__(self) -> Snapshot:
        """Return the snapshot of this moment; takes under 1 ms and never raises."""
        levels, problems = read_levels(self.root)
        if self._tree is not None:
            seen = self._tree.levels()
            levels = (*levels, *seen) if any(level.problem for level in seen) else seen
        stated, unknown = self._stated()
        figures, meminfo_problems = self._meminfo()
        return Snapshot(
            levels=(*levels, *unknown),
            available=figures.get("MemAvailable"),
            total=figures.get("MemTotal"),
            explicit_limit=stated,
            resident=self._resident(),
            problems=(*problems, *meminfo_problems),
        )

    def _stated(self) -> tuple[int | None, tuple[Level, ...]]:
        """Return the smaller of both stated limits, and a level that permits nothing if unknown."""
        if self.limit_file is None:
            return self.explicit_limit, ()
        try:
            text = self.limit_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            problem = f"unreadable: {error}"
        else:
            if text.isascii() and text.isdigit() and int(text) > 0:
                limits = [int(text), *filter(None, [self.explicit_limit])]
                return min(limits), ()
            problem = f"it holds {text[:40]!r}, not a number of bytes above 0"
        name = f"memory limit file {self.limit_file}"
        return self.explicit_limit, (Level(path=name, version=0, limit=None, problem=problem),)

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
