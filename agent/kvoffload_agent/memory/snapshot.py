"""What the kernel says about memory at one moment; the guard decides from nothing else.

Sources: ``datapath.md`` section 6 (what is charged to whom, what is reclaimable) and the kernel's
``Documentation/admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One cgroup that limits this process: its own or an ancestor.

    All figures are bytes. ``limit`` None: unlimited. ``problem`` says what could not be read: such
    a level permits nothing, since what it would have said is unknown.
    ``high`` is true if ``limit`` is memory.high: above it the kernel throttles instead of kills.
    """

    path: str
    version: int
    limit: int | None
    usage: int = 0
    inactive_file: int = 0
    high: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """What limits, for people."""
        if not self.version:
            return self.path
        what = "memory.high" if self.high else "memory limit"
        return f"{what} of cgroup {self.path} (v{self.version})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every limit that applies to this process.

    ``levels`` from the process's own cgroup up to the topmost visible one.
    ``explicit_limit``: the container's memory limit as an operator or the Downward API states it;
    it counts against the usage of the process's own cgroup, or without one its resident set.
    ``available``/``total``: MemAvailable and MemTotal of the node, None if unreadable.
    """

    levels: tuple[Level, ...]
    available: int | None
    total: int | None
    explicit_limit: int | None = None
    resident: int = 0
    problems: tuple[str, ...] = ()

    def bounds(self) -> tuple[Level, ...]:
        """Return every limit as a level, the explicit one and the node's included."""
        bounds = [level for level in self.levels if level.limit is not None or level.problem]
        if self.explicit_limit is not None:
            own = self.levels[0] if self.levels and not self.levels[0].problem else None
            bounds.append(
                Level(
                    path="explicit limit",
                    version=0,
                    limit=self.explicit_limit,
                    usage=own.usage if own else self.resident,
                    inactive_file=own.inactive_file if own else 0,
                )
            )
        if self.available is not None and self.total is not None:
            bounds.append(
                Level(
                    path="node (MemAvailable)",
                    version=0,
                    limit=self.total,
                    usage=max(0, self.total - self.available),
                )
            )
        return tuple(bounds)
