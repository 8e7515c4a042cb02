"""Memory cgroups of our own, of the v1 or the v2 controller, whichever this machine has."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1 = ROOT / "memory"


def version() -> int:
    """Return which hierarchy has the memory controller.

    Raises:
        AssertionError: none that can be written.
    """
    if (V1 / "memory.limit_in_bytes").exists():
        return 1
    controllers = ROOT / "cgroup.controllers"
    assert controllers.exists(), "these tests need a memory controller and root"
    assert "memory" in controllers.read_text().split(), "the v2 tree has no memory controller"
    return 2


class Group:
    """A memory cgroup with a limit in bytes (None: unlimited), below ``parent`` or the root."""

    def __init__(self, limit: int | None, *, parent: Group | None = None) -> None:
        self.version = version()
        above = parent.path if parent else V1 if self.version == 1 else ROOT
        if self.version == 2:
            # A v2 group has the files of a controller only if the group above says so.
            (above / "cgroup.subtree_control").write_text("+memory")
        self.path: Path = above / f"kvoffload-test-{secrets.token_hex(4)}"
        self.path.mkdir()
        if limit is not None:
            self.limit(limit)

    def limit(self, value: int) -> None:
        """Set the hard limit; the kernel reclaims, and kills if that is not enough."""
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        (self.path / name).write_text(str(value))

    def enter(self) -> list[str]:
        """Return a command prefix that moves itself in."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def figure(self, name: str, key: str) -> int:
        """Return one figure of a file of ``key number`` lines."""
        for line in (self.path / name).read_text().splitlines():
            if line.startswith(f"{key} "):
                return int(line.split()[1])
        raise KeyError(key)

    @property
    def usage(self) -> int:
        """Bytes charged to the group and those below it, page cache included."""
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        return int((self.path / name).read_text())

    @property
    def oom_kills(self) -> int:
        """How many processes of the group the kernel has killed for memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return self.figure(name, "oom_kill")

    def remove(self) -> None:
        """Remove it; its processes are ending."""
        until = time.monotonic() + 10
        while True:
            try:
                self.path.rmdir()
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
            else:
                return
