"""What the kernel tells by itself about memory: cgroup v1 eventfds, v2 events, PSI triggers.

Each is optional: a container often has its cgroup tree read-only, PSI may be off, and a slow poll
of the figures finds the same later. A notification only says "look now", except a stall of the
own cgroup, which no figure shows.

Sources: the kernel's ``cgroup-v1/memory.rst`` (sections 9 and 11), ``cgroup-v2.rst``
(memory.events, memory.pressure) and ``accounting/psi.rst``.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kvoffload_agent.memory.cgroups import V1_UNLIMITED, own_groups
from kvoffload_agent.memory.guard import margin

# A task waited for memory during 15 % of the time, the share of the example in psi.rst. Windows of
# 2 s are the shortest that a process without CAP_SYS_RESOURCE may ask for.
PSI_TRIGGER: Final = b"some 300000 2000000"
# v1: where the margin begins and where pressure decides (a quarter of it is gone), so that a
# neighbour's growth is met early and once more when it goes on.
V1_MARGIN_PARTS: Final = (4, 3)


class Notifications:
    """Listens for the cgroups of this process; ``fileno`` is readable when there is news.

    Owned by one task; ``close`` ends every subscription in the kernel.
    """

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._root = root
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], bool]] = {}
        self._thresholds: dict[Path, tuple[int, list[int]]] = {}
        self.listening: list[str] = []
        """What the kernel accepted, for the log."""
        self._version, self._groups = own_groups(root)
        if self._version == 1:
            self._listen_v1()
        elif self._groups:
            self._listen_v2()
        self._psi(root / "proc/pressure/memory", own=False)
        self.follow_limits()

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._epoll.fileno()

    def take(self) -> bool:
        """Acknowledge all news; return whether the own cgroup stalled on memory."""
        stalled = False
        for fd, _ in self._epoll.poll(0):
            if (reader := self._readers.get(fd)) is not None:
                stalled = reader() or stalled
        return stalled

    def follow_limits(self) -> None:
        """Set the thresholds of v1 anew where a limit moved; cheap if none did."""
        if self._version != 1:
            return
        for group in self._groups:
            limit = _number(group / "memory.limit_in_bytes")
            known, fds = self._thresholds.get(group, (-1, []))
            if limit == known:
                continue
            for fd in fds:
                self._forget(fd)
            made: list[int] = []
            if 0 <= limit < V1_UNLIMITED:
                for part in V1_MARGIN_PARTS:
                    at = max(0, limit - margin(limit) * part // V1_MARGIN_PARTS[0])
                    made += self._eventfd(group, "memory.usage_in_bytes", str(at))
            self._thresholds[group] = (limit, made)

    def close(self) -> None:
        """End every subscription."""
        for fd in list(self._readers):
            self._forget(fd)
        self._epoll.close()

    # --- subscriptions ---------------------------------------------------------------------

    def _listen_v1(self) -> None:
        # "medium": the group reclaims in earnest; "low" also tells of any page cache turned over.
        self._eventfd(self._groups[0], "memory.pressure_level", "medium")

    def _listen_v2(self) -> None:
        for group in self._groups:
            with contextlib.suppress(OSError):
                fd = os.open(group / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
                # kernfs tells of a change once the file was read.
                self._add(fd, select.EPOLLPRI, lambda fd=fd: _reread(fd))  # type: ignore[misc]
                self.listening.append(f"{group}/memory.events")
        self._psi(self._groups[0] / "memory.pressure", own=True)

    def _psi(self, path: Path, *, own: bool) -> None:
        """Set a trigger; the node's tells of other groups' stalls too, so it only says "look"."""
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(fd, PSI_TRIGGER)
            self._add(fd, select.EPOLLPRI, lambda: own)
        except OSError:
            if fd >= 0:
                os.close(fd)
            return
        self.listening.append(str(path))

    def _eventfd(self, group: Path, name: str, argument: str) -> list[int]:
        """Register an eventfd of v1; returns it, or nothing where the kernel refuses."""
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            source = os.open(group / name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                (group / "cgroup.event_control").write_text(f"{fd} {source} {argument}")
            finally:
                os.close(source)
            self._add(fd, select.EPOLLIN, lambda: _drain(fd))
        except OSError:
            os.close(fd)
            return []
        self.listening.append(f"{group}/{name} {argument}")
        return [fd]

    def _add(self, fd: int, events: int, reader: Callable[[], bool]) -> None:
        reader()
        self._epoll.register(fd, events)
        self._readers[fd] = reader

    def _forget(self, fd: int) -> None:
        del self._readers[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        os.close(fd)


def _drain(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        os.eventfd_read(fd)
    return False


def _reread(fd: int) -> bool:
    with contextlib.suppress(OSError):
        os.pread(fd, 4096, 0)
    return False


def _number(path: Path) -> int:
    """Return the number in a file, -1 if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return -1
