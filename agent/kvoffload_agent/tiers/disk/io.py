"""Blocking work on files; called in threads only. No path is followed: directory descriptors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.blocks import Blocks
from kvoffload_agent.tiers.disk.layout import ALIGN, DamagedError, Header
from kvoffload_agent.tiers.disk.rows import Cancel, SlotRows, VanishedError, Wanted, Written

LOCK_NAME: Final = "lock"

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class DiskError(Exception):
    """The directory cannot be used; whoever named it must act."""


class Files(Blocks):
    """The directory of a disk tier. ``reserve``: bytes of the file system that stay free."""

    def __init__(self, root: Path, *, reserve: int | None = None) -> None:
        super().__init__()
        self.root = root
        self._reserve = reserve
        self._root_fd = -1
        self._lock_fd = -1

    # --- the directory -----------------------------------------------------------------------

    def open(self) -> None:
        """Make and lock the directory.

        Raises:
            DiskError: it is no directory of ours, or another agent uses it.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root_fd = os.open(self.root, _FOLDER_FLAGS)
            os.fchmod(self._root_fd, 0o700)
            flags = os.O_RDWR | os.O_CREAT | _FILE_FLAGS
            self._lock_fd = os.open(LOCK_NAME, flags, 0o600, dir_fd=self._root_fd)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise DiskError(f"another agent uses {self.root}") from error
        except OSError as error:
            self.close()
            raise DiskError(f"{self.root}: {error.strerror}: name a directory of ours") from error

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

    def names(self, folder: str) -> list[tuple[str, int]]:
        """Return the (name, bytes by st_blocks) of all files of a partition."""
        with self._folder(folder) as at, os.scandir(at) as entries:
            return [
                (entry.name, entry.stat(follow_symlinks=False).st_blocks * 512) for entry in entries
            ]

    def remove(self, folder: str, name: str) -> None:
        """Remove one file; that it is gone already is as good."""
        with contextlib.suppress(FileNotFoundError), self._folder(folder) as at:
            os.unlink(name, dir_fd=at)

    def tidy(self, folder: str) -> None:
        """Remove a directory if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(folder, dir_fd=self._root_fd)

    @contextlib.contextmanager
    def _folder(self, name: str, *, make: bool = False) -> Iterator[int]:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=self._root_fd)
        number = os.open(name, _FOLDER_FLAGS, dir_fd=self._root_fd)
        try:
            if make:
                os.fchmod(number, 0o700)
            yield number
        finally:
            os.close(number)

    # --- packs -------------------------------------------------------------------------------

    def write(
        self, header: Header, *, folder: str, rows: SlotRows, first: int, cancel: Cancel
    ) -> Written:
        """Write a pack of the rows from ``first`` on, visible only once it is whole.

        Raises:
            OSError: ENOSPC also where only the reserve is left; nothing stays behind.
            CancelledError: nothing stays behind.
        """
        size = layout.file_bytes(
            header_bytes=len(layout.encode(header)),
            chunks=len(header.keys),
            chunk_bytes=header.chunk_bytes,
        )
        if self.available() < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary = header.name + layout.TEMPORARY_SUFFIX
        with self._folder(folder, make=True) as at:
            number = self._create(temporary, at)
            try:
                try:
                    written = self.fill(number, header, rows, first, cancel)
                finally:
                    os.close(number)
                cancel.check()
                os.rename(temporary, header.name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=at)
                raise
        return written

    def read(
        self,
        *,
        folder: str,
        name: str,
        size: int,
        data_at: int,
        wanted: Sequence[Wanted],
        rows: SlotRows,
        cancel: Cancel,
    ) -> None:
        """Fill rows with chunks of a pack whose file has ``size`` bytes.

        Rows may hold anything after an error; nobody may read them then.

        Raises:
            DamagedError: the file is not what was written.
            VanishedError: it is gone.
            OSError: the disk fails.
        """
        try:
            with self._folder(folder) as at:
                number = self.open_pack(name, at)
        except FileNotFoundError as error:
            raise VanishedError(name) from error
        try:
            found = os.fstat(number).st_size
            if found != size:
                raise DamagedError("truncated", f"{found} bytes of {size}")
            for chunk in wanted:
                self.load(number, data_at, chunk, rows, cancel)
        finally:
            os.close(number)

    def header(self, folder: str, name: str) -> tuple[Header, int, int]:
        """Read (header, its length in the file, bytes by st_blocks) of a pack.

        Raises:
            DamagedError, OSError: it is not one.
        """
        with self._folder(folder) as at:
            number = self.open_pack(name, at, direct=False)
        try:
            info = os.fstat(number)
            first = os.pread(number, ALIGN, 0)
            length = layout.encoded_bytes(first)
            raw = first if length <= ALIGN else first + os.pread(number, length - ALIGN, ALIGN)
            found = layout.decode(raw)
        finally:
            os.close(number)
        expected = layout.file_bytes(
            header_bytes=length, chunks=len(found.keys), chunk_bytes=found.chunk_bytes
        )
        if info.st_size != expected:
            raise DamagedError("truncated", f"{info.st_size} bytes of {expected}")
        return found, length, info.st_blocks * 512

    def open_pack(self, name: str, folder: int, *, direct: bool = True) -> int:
        """Open a file that must be ours alone.

        Raises:
            DamagedError: it is a link, no plain file, or another user's.
        """
        flags = os.O_RDONLY | os.O_NONBLOCK | _FILE_FLAGS
        try:
            number = _open_direct(name, flags, folder, direct=direct)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise DamagedError("replaced", "it is no plain file") from error
            raise
        info = os.fstat(number)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_nlink != 1:
            os.close(number)
            raise DamagedError("replaced", "it is no plain file of this agent alone")
        return number

    def _create(self, name: str, folder: int) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE_FLAGS
        try:
            number = os.open(name, flags | os.O_DIRECT, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            with contextlib.suppress(FileNotFoundError):
                # Some file systems refuse the flag only after they made the file.
                os.unlink(name, dir_fd=folder)
            number = os.open(name, flags, 0o600, dir_fd=folder)
        os.fchmod(number, 0o600)
        return number


def _open_direct(name: str, flags: int, folder: int, *, direct: bool) -> int:
    if direct:
        try:
            return os.open(name, flags | os.O_DIRECT, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(name, flags, dir_fd=folder)
