"""Segments of the agent's memory as mapped into a worker.

A segment stays mapped while a copy uses it; what is closed meanwhile is unmapped by the last one.
Engines must unmap when the agent is gone: pages mapped here would still be charged to it, and a
restarted agent would find its budget occupied (``datapath.md`` section 6).
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from kvoffload_api.wire.messages import SegmentInfo

_log = logging.getLogger(__name__)

# <asm-generic/mman-common.h>; Python 3.11's mmap module does not know it.
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23
_PROT_READ_WRITE: Final = 1 | 2
_MAP_SHARED: Final = 1

# ctypes releases the GIL during these calls, mmap.madvise does not: populating a GiB would stop
# the engine for half a second (``datapath.md`` section 3).
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


class SegmentError(Exception):
    """A segment cannot be used; the message says why."""


@dataclass(slots=True)
class Segment:
    """A mapped segment: ``[address, address + nbytes)``, in use by ``users`` copies."""

    number: int
    address: int
    nbytes: int
    users: int = 0
    closing: bool = False


class MappingUse(Protocol):
    """What else has to know of mapped memory, such as a GPU. Called from any thread."""

    def pin(self, address: int, nbytes: int) -> None:
        """Take part in a new mapping, before anything is copied."""

    def unpin(self, address: int) -> None:
        """Take no part any more: the mapping ends next."""


class Segments:
    """Mapped segments by number. All methods may be called from any thread.

    Args:
        unmapped: called with the numbers of segments that the agent asked back, once they are
            unmapped; from whichever thread ended their use, without a lock held.
        pins: is told of every mapping.
    """

    def __init__(
        self, *, unmapped: Callable[[list[int]], None], pins: MappingUse | None = None
    ) -> None:
        self._pins = pins
        self._lock = threading.Lock()
        self._open: dict[int, Segment] = {}
        self._tell = unmapped

    def map(self, infos: Iterable[SegmentInfo], fds: Iterable[int]) -> list[int]:
        """Map segments and build their page tables; return their numbers. Closes every fd.

        Raises:
            SegmentError: one cannot be mapped or could shrink under us; the others are mapped.
        """
        numbers = []
        problem: SegmentError | None = None
        for info, fd in zip(infos, fds, strict=True):
            try:
                segment = Segment(info.segment, _map(info, fd), info.bytes)
            except SegmentError as error:
                problem = error
                continue
            finally:
                os.close(fd)
            self._populate(segment)
            with self._lock:
                replaced = self._open.pop(info.segment, None)
                self._open[info.segment] = segment
            if replaced is not None:  # numbers are never used twice; be safe if one is
                self._close([replaced], tell=False)
            numbers.append(info.segment)
        if problem is not None:
            raise problem
        return numbers

    def take(self, numbers: Iterable[int]) -> list[Segment] | None:
        """Return these segments, in use until ``release``; None if one is not mapped."""
        with self._lock:
            found = [self._open.get(number) for number in numbers]
            taken = [segment for segment in found if segment is not None]
            if len(taken) < len(found):
                return None
            for segment in taken:
                segment.users += 1
            return taken

    def release(self, segments: Iterable[Segment]) -> None:
        """End the use of segments that ``take`` returned."""
        done = []
        with self._lock:
            for segment in segments:
                segment.users -= 1
                if segment.closing and segment.users == 0:
                    done.append(segment)
        self._unmap(done, tell=True)

    def close(self, numbers: Iterable[int]) -> None:
        """Unmap segments that the agent asks back, after the copies that use them."""
        wanted = list(numbers)
        with self._lock:
            found = [s for number in wanted if (s := self._open.pop(number, None)) is not None]
        self._close(found, tell=True)
        known = {segment.number for segment in found}
        unknown = [number for number in wanted if number not in known]
        if unknown:
            self._tell(unknown)

    def close_all(self) -> None:
        """Unmap everything, after the copies that use it: the agent is gone."""
        with self._lock:
            found = list(self._open.values())
            self._open.clear()
        self._close(found, tell=False)

    def ranges(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of what is mapped and open."""
        with self._lock:
            return [(segment.address, segment.nbytes) for segment in self._open.values()]

    def _close(self, segments: Iterable[Segment], *, tell: bool) -> None:
        idle = []
        with self._lock:
            for segment in segments:
                segment.closing = True
                if segment.users == 0:
                    idle.append(segment)
        self._unmap(idle, tell=tell)

    def _populate(self, segment: Segment) -> None:
        if self._pins is None:
            _libc.madvise(segment.address, segment.nbytes, _MADV_POPULATE_READ)
            return
        # A driver that pins pages faults those that cannot be written one by one, under a lock
        # that holds others up (``datapath.md`` section 7). The agent allocated them all.
        _libc.madvise(segment.address, segment.nbytes, _MADV_POPULATE_WRITE)
        self._pins.pin(segment.address, segment.nbytes)

    def _unmap(self, segments: list[Segment], *, tell: bool) -> None:
        for segment in segments:
            if self._pins is not None:
                self._pins.unpin(segment.address)
            _libc.munmap(segment.address, segment.nbytes)
        if segments and tell:
            self._tell([segment.number for segment in segments])


def _map(info: SegmentInfo, fd: int) -> int:
    """Return the address of a new mapping of a whole segment.

    Raises:
        SegmentError: it is smaller than announced, not sealed against shrinking (touching pages
            that were cut off would kill the engine), or the kernel refuses.
    """
    try:
        size = os.fstat(fd).st_size
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise SegmentError(f"segment {info.segment} is no memory file: {error}") from error
    if not 0 < info.bytes <= size:
        raise SegmentError(f"segment {info.segment} has {size} bytes, not {info.bytes}")
    if not seals & fcntl.F_SEAL_SHRINK:
        raise SegmentError(f"segment {info.segment} is not sealed against shrinking")
    address = _libc.mmap(None, info.bytes, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise SegmentError(f"segment {info.segment} of {info.bytes} bytes: mmap: {reason}")
    assert isinstance(address, int)
    return address
