"""The directory of a disk tier and those of its partitions; blocking, called in threads only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.layout import DamagedError

LOCK_NAME: Final = "lock"
# mkfs makes it, so a file system of its own has it too.
_LOST_AND_FOUND: Final = "lost+found"

FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | FILE_FLAGS


class DiskError(Exception):
    """The directory cannot be used; whoever named it must act."""


class Directory:
    """Belongs to one agent alone. ``reserve``: bytes of the file system that stay free."""

    def __init__(self, root: Path, *, reserve: int | None = None) -> None:
        self.root = root
        self._reserve = reserve
        self._root_fd = -1
        self._lock_fd = -1
        # Held while a file is made, so that no empty directory is removed between mkdir and that.
        self.making = threading.Lock()

    def open(self) -> None:
        """Make and lock the directory.

        Raises:
            DiskError: it is no directory of ours, or another agent uses it.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root_fd = os.open(self.root, _FOLDER_FLAGS)
            self._check_ours()
            os.fchmod(self._root_fd, 0o700)
            flags = os.O_RDWR | os.O_CREAT | FILE_FLAGS
            self._lock_fd = os.open(LOCK_NAME, flags, 0o600, dir_fd=self._root_fd)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise DiskError(f"another agent uses {self.root}") from error
        except OSError as error:
            self.close()
            raise DiskError(f"{self.root}: {error.strerror}: name a directory of ours") from error
        except DiskError:
            self.close()
            raise

    def _check_ours(self) -> None:
        """See that nobody else's directory is closed to others (0700) and filled."""
        owner = os.fstat(self._root_fd).st_uid
        if owner != os.geteuid():
            raise DiskError(
                f"{self.root} belongs to uid {owner}: give it to uid {os.geteuid()} or name another"
            )
        held = set(os.listdir(self._root_fd))  # noqa: PTH208 - a descriptor, not a path
        ours = {name for name in held if layout.is_folder(name)}
        foreign = sorted(held - ours - {_LOST_AND_FOUND})
        if foreign and LOCK_NAME not in held:
            raise DiskError(
                f"{self.root} holds what no agent wrote, such as {foreign[0]!r}: name a directory"
                " that is empty or an agent's"
            )

    def close(self) -> None:
        """Let another agent use the directory."""
        for number in (self._root_fd, self._lock_fd):
            if number >= 0:
                os.close(number)
        self._root_fd = self._lock_fd = -1

    def available(self) -> int:
        """Return the bytes that may still be written; below 0 if the reserve is used already."""
        found = os.fstatvfs(self._root_fd)
        reserve = self._reserve
        if reserve is None:
            # As much as ext4 keeps for root: kubelet evicts pods when a disk is nearly full.
            reserve = found.f_blocks * found.f_frsize // 20
        return found.f_bavail * found.f_frsize - reserve

    def folders(self) -> list[str]:
        """Return the names of all partitions' directories."""
        names = os.listdir(self._root_fd)  # noqa: PTH208 - a descriptor, not a path
        return [name for name in names if layout.is_folder(name)]

    def names(self, folder: str) -> tuple[list[tuple[str, int]], int]:
        """Return the (name, bytes by st_blocks) of all files of a partition, and its own bytes.

        Raises:
            DamagedError: it is no directory; whatever it was is removed.
        """
        with self.folder(folder) as at, os.scandir(at) as entries:
            own = os.fstat(at).st_blocks * 512
            return [
                (entry.name, entry.stat(follow_symlinks=False).st_blocks * 512) for entry in entries
            ], own

    def remove(self, folder: str, name: str) -> None:
        """Remove one file; that it is gone already is as good."""
        with contextlib.suppress(FileNotFoundError, DamagedError), self.folder(folder) as at:
            try:
                os.unlink(name, dir_fd=at)
            except IsADirectoryError:
                os.rmdir(name, dir_fd=at)

    def tidy(self, folder: str) -> bool:
        """Remove a directory if it is empty; return whether it is gone."""
        try:
            with self.making:
                os.rmdir(folder, dir_fd=self._root_fd)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    @contextlib.contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        """Open a partition's directory.

        Raises:
            DamagedError: it is something else, which is removed.
        """
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._root_fd)
        try:
            number = os.open(name, _FOLDER_FLAGS, dir_fd=self._root_fd)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            # Else no store of this partition would ever find its place again.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._root_fd)
            raise DamagedError("replaced", f"{name} is no directory") from error
        try:
            if make:
                os.fchmod(number, 0o700)
            yield number
        finally:
            os.close(number)
