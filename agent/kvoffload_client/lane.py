"""One direction's copies: a queue and the thread that works it off in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_client.carrier import Carrier, DeviceError, Mark
from kvoffload_client.jobs import Job, JobResult
from kvoffload_client.memory import Copies, KVAddresses, PlanError
from kvoffload_client.segments import Segments

# How often to look whether the engine's own work has come to where a job may begin. A step takes 10
# to 50 ms.
_MARK_SECONDS: Final = 0.0005
_JOIN_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """A job in a lane. ``give_up_at``: monotonic seconds. ``stopped``: why it must not go on.

    ``mark``: the job begins when the engine's own work on its GPU has got there.
    """

    job: Job
    give_up_at: float
    stopped: str = ""
    mark: Mark | None = None


class Lane:
    """Copies jobs one after the other on a thread of its own.

    Args:
        name: for the thread.
        carrier: what copies.
        addresses: where KV blocks are.
        segments: what is mapped.
        ended: called on the lane's thread when a job no longer touches memory.
    """

    def __init__(
        self,
        *,
        name: str,
        carrier: Carrier,
        addresses: KVAddresses,
        segments: Segments,
        ended: Callable[[Work, JobResult], None],
    ) -> None:
        self._carrier = carrier
        self._addresses = addresses
        self._segments = segments
        self._ended = ended
        self._changed = threading.Condition()
        self._queue: deque[Work] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"kvoffload-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue a job behind the others."""
        with self._changed:
            self._queue.append(work)
            self._changed.notify()

    def close(self) -> None:
        """End the thread after the jobs that are queued; the caller stops them first."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                work = self._queue.popleft()
            nbytes, reason = self._do(work)
            job = work.job
            self._ended(work, JobResult(job.key, job.kind, job.handle, not reason, nbytes, reason))

    def _do(self, work: Work) -> tuple[int, str]:
        """Carry out a job; return its bytes and why it failed (empty: it did not)."""
        try:
            if reason := self._await_mark(work):
                return 0, reason
            copies, taken = self._addresses.resolve(work.job.plan, self._segments)
        except PlanError as error:
            return 0, f"bad plan: {error}"
        except DeviceError as error:
            return 0, f"the GPU failed: {error}"
        try:
            reason = self._copy_slices(work, copies)
        finally:
            self._segments.release(taken)
        return copies.nbytes, reason

    def _await_mark(self, work: Work) -> str:
        """Wait until the job may begin; return why it must not."""
        try:
            while not (reason := _unwanted(work)) and work.mark and not work.mark.reached():
                time.sleep(_MARK_SECONDS)
        finally:
            if work.mark is not None:
                work.mark.close()
        return reason

    def _copy_slices(self, work: Work, copies: Copies) -> str:
        """Copy; return why it failed, once nothing is read or written any more."""
        try:
            try:
                reason = self._move_slices(work, copies)
            finally:
                self._carrier.drain()
        except OSError as error:
            return f"its memory cannot be read or written: {error}"
        except DeviceError as error:
            return f"the GPU failed: {error}"
        # A job that was stopped during its last slice may name memory whose owner has changed.
        return reason or work.stopped

    def _move_slices(self, work: Work, copies: Copies) -> str:
        src, dst = copies.arena, copies.kv
        if work.job.kind == "store":
            src, dst = dst, src
        start = 0
        for stop in _slice_ends(copies, self._carrier.slice_bytes):
            if reason := _unwanted(work):
                return reason
            self._carrier.move(src[start:stop], dst[start:stop], copies.lengths[start:stop])
            start = stop
        return ""


def _unwanted(work: Work) -> str:
    if work.stopped:
        return work.stopped
    return "its deadline passed" if time.monotonic() > work.give_up_at else ""


def _slice_ends(copies: Copies, slice_bytes: int) -> list[int]:
    """Return where to cut the ranges so that slices have about ``slice_bytes``."""
    slices = np.cumsum(copies.lengths) // np.uint64(slice_bytes)
    cuts = (np.flatnonzero(np.diff(slices)) + 1).tolist()
    return [*cuts, len(slices)] if len(slices) else []
