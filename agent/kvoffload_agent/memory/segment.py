"""One memfd segment: made, populated in steps, sealed, closed."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import Final

# linux/mman.h, since Linux 5.14.
MADV_POPULATE_WRITE: Final = 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Segment:
    """A shared memory file of whole rows, of one partition and rank for life.

    The number of bytes is fixed by ``seal``; until then ``truncate`` may lower it. The agent maps
    it only while it populates it: a mapping costs page tables, and the descriptor keeps the pages.
    """

    def __init__(self, *, segment: int, size: int) -> None:
        self.id = segment
        self.bytes = size
        self.populated = 0
        self.fd = os.memfd_create(f"kvoffload-{segment}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._map: mmap.mmap | None = None
        try:
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
        except BaseException:
            self.close()
            raise

    def populate(self, step: int) -> int:
        """Make the next ``step`` bytes resident, charged to this process; returns how many.

        Blocking, without the GIL (``datapath.md`` section 3: ``mmap.madvise`` holds it for the
        whole call): to be called in a thread.

        Raises:
            OSError: the kernel has no memory for them (EFAULT, ENOMEM), nothing is lost.
        """
        assert self._map is not None, "populated only before it is sealed"
        step = min(step, self.bytes - self.populated)
        if step <= 0:
            return 0
        view = ctypes.c_char.from_buffer(self._map)
        try:
            address = ctypes.addressof(view) + self.populated
            if _libc.madvise(address, step, MADV_POPULATE_WRITE) != 0:
                number = ctypes.get_errno()
                if number != errno.EINVAL:  # a kernel before 5.14: writing does the same
                    raise OSError(number, os.strerror(number))
                ctypes.memset(address, 0, step)
        finally:
            del view
        self.populated += step
        return step

    def truncate(self, size: int) -> None:
        """Lower the size, giving back the pages beyond it."""
        self._unmap()
        os.ftruncate(self.fd, size)
        self.bytes = size
        self.populated = min(self.populated, size)

    def seal(self) -> None:
        """Fix the size for ever, so that no peer can truncate what others have mapped."""
        self._unmap()
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)

    def close(self) -> None:
        """Give the memory back once the last mapper is gone; may be called again."""
        self._unmap()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _unmap(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
