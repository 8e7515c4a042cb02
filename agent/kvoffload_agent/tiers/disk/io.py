"""Blocking work on files; called in threads only. No path is followed: directory descriptors."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.blocks import Blocks
from kvoffload_agent.tiers.disk.directory import FILE_FLAGS, Directory
from kvoffload_agent.tiers.disk.layout import ALIGN, DamagedError, Header
from kvoffload_agent.tiers.disk.rows import Cancel, SlotRows, VanishedError, Wanted, Written


class Files(Directory, Blocks):
    """The packs in a disk tier's directory. ``reserve``: bytes of its file system to leave free."""

    def __init__(self, root: Path, *, reserve: int | None = None) -> None:
        Directory.__init__(self, root, reserve=reserve)
        Blocks.__init__(self)

    def write(
        self, header: Header, *, folder: str, rows: SlotRows, first: int, cancel: Cancel
    ) -> Written:
        """Write a pack of the rows from ``first`` on, visible only once it is whole.

        Raises:
            OSError: ENOSPC also where only the reserve is left; nothing stays behind.
            DamagedError: something else lay where its directory belongs; it is removed.
            CancelledError: nothing stays behind.
        """
        cancel.check()
        size = layout.file_bytes(
            header_bytes=len(layout.encode(header)),
            chunks=len(header.keys),
            chunk_bytes=header.chunk_bytes,
        )
        if self.available() < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        temporary = header.name + layout.TEMPORARY_SUFFIX
        with contextlib.ExitStack() as stack:
            with self.making:
                at = stack.enter_context(self.folder(folder, make=True))
                number = self._create(temporary, at)
            try:
                try:
                    data_at, sums = self.fill(number, header, rows, first, cancel)
                    size = taken(os.fstat(number))
                finally:
                    os.close(number)
                cancel.check()
                os.rename(temporary, header.name, src_dir_fd=at, dst_dir_fd=at)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=at)
                raise
            own = os.fstat(at).st_blocks * 512
        return Written(bytes=size, folder_bytes=own, data_at=data_at, sums=sums)

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
        cancel.check()
        try:
            with self.folder(folder) as at:
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
        with self.folder(folder) as at:
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
        flags = os.O_RDONLY | os.O_NONBLOCK | FILE_FLAGS
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
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE_FLAGS
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


def taken(info: os.stat_result) -> int:
    """Return the bytes that a file without holes takes.

    ZFS allocates some seconds after a write and says 512 bytes until then.
    """
    return max(info.st_blocks * 512, info.st_size)


def _open_direct(name: str, flags: int, folder: int, *, direct: bool) -> int:
    if direct:
        try:
            return os.open(name, flags | os.O_DIRECT, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(name, flags, dir_fd=folder)
