"""Finds this process's memory cgroup in a mount of the host's whole tree, to see every ancestor.

In a container with a cgroup namespace its own group is the topmost that it can see. Where the
host's ``/sys/fs/cgroup`` is mounted read-only at another place, the same group is there too, and
is told by device and inode: all mounts of one cgroup hierarchy share them, while the names that
``/proc/self/cgroup`` shows are those of the namespace (cgroup_namespaces(7)).
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

from kvoffload_agent.memory.cgroups import chain, own_groups
from kvoffload_agent.memory.snapshot import Level

# Some ten times the groups of a node with 250 pods: a wrong folder is not searched for ever.
MAX_GROUPS: Final = 20_000

_Identity = tuple[int, int]


class HostTree:
    """The host's cgroup tree at ``tree``; ``root`` is where this process's file system begins.

    The place is searched once for each group the process is in, and compared at every reading.
    """

    def __init__(self, *, tree: Path, root: Path = Path("/")) -> None:
        self._tree = tree
        self._root = root
        self._searched: _Identity | None = None
        self._found: Path | None = None

    def levels(self) -> tuple[Level, ...]:
        """Return the levels from the own group up to the root of the tree; never raises.

        If the own group is not found, one level with a problem, which permits nothing: the limits
        that were to be seen are unknown.
        """
        version, groups = own_groups(self._root)
        if not groups:
            return (self._problem("no memory cgroup of this process is visible"),)
        memory = self._tree / "memory"
        top = memory if version == 1 and memory.is_dir() else self._tree
        try:
            own = _identity(groups[0])
        except OSError as error:
            return (self._problem(f"the cgroup of this process is unreadable: {error}"),)
        if own != self._searched or not self._still(own):
            self._found = _search(top, own)
            self._searched = own
        if self._found is None:
            return (self._problem("the cgroup of this process is not in it"),)
        return chain(top, own=self._found, version=version)

    def _still(self, own: _Identity) -> bool:
        if self._found is None:
            return True  # looked for without success: the answer stays while the group does
        try:
            return _identity(self._found) == own
        except OSError:
            return False

    def _problem(self, what: str) -> Level:
        return Level(path=f"host cgroup tree {self._tree}", version=0, limit=None, problem=what)


def _search(top: Path, own: _Identity) -> Path | None:
    """Return the folder with that identity, breadth first; None if there is none."""
    waiting = deque([top])
    seen = 0
    try:
        if _identity(top) == own:
            return top
    except OSError:
        return None
    while waiting and seen < MAX_GROUPS:
        try:
            with os.scandir(waiting.popleft()) as entries:
                folders = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # a group that ended meanwhile
        seen += len(folders)
        for entry in folders:
            path = Path(entry.path)
            if entry.inode() == own[1] and _is(path, own):
                return path
            waiting.append(path)
    return None


def _is(path: Path, own: _Identity) -> bool:
    try:
        return _identity(path) == own
    except OSError:
        return False


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino
