"""One direction's copies: a queue and the thread that works it off in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvoffload_client.copy import BlockCopy
from kvoffload_client.jobs import Job, JobResult
from kvoffload_client.memory import Copies, KVAddresses, PlanError
from kvoffload_client.segments import Segments

# Between slices a copy looks whether it is still wanted. 8 MiB take about a millisecond and cost
# nothing measurable against one call (``datapath.md`` section 1.3, "Control latency").
SLICE_BYTES: Final = 8 * 1024 * 1024
_JOIN_SECONDS: Final = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """A job in a lane. ``give_up_at``: monotonic seconds. ``stopped``: why it must not go on."""

    job: Job
    give_up_at: float
    stopped: str = ""


class Lane:
    """Copies jobs one after the other on a thread of its own.

    Args:
        name: for the thread.
        copy: what copies.
        addresses: where KV blocks are.
        segments: what is mapped.
        ended: called on the lane's thread when a job no longer touches memory.
    """

    def __init__(
        self,
        *,
        name: str,
        copy: BlockCopy,
        addresses: KVAddresses,
        segments: Segments,
        ended: Callable[[Work, JobResult], None],
    ) -> None:
        self._copy = copy
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
        if reason := _unwanted(work):
            return 0, reason
        try:
            copies, taken = self._addresses.resolve(work.job.plan, self._segments)
        except PlanError as error:
            return 0, f"bad plan: {error}"
        try:
            return copies.nbytes, self._copy_slices(work, copies)
        except OSError as error:
            return 0, f"its memory cannot be read or written: {error}"
        finally:
            self._segments.release(taken)

    def _copy_slices(self, work: Work, copies: Copies) -> str:
        src, dst = copies.arena, copies.kv
        if work.job.kind == "store":
            src, dst = dst, src
        start = 0
        for stop in _slice_ends(copies):
            if reason := _unwanted(work):
                return reason
            self._copy(src[start:stop], dst[start:stop], copies.lengths[start:stop])
            start = stop
        # A job that was stopped during its last slice may name memory whose owner has changed.
        return work.stopped


def _unwanted(work: Work) -> str:
    if work.stopped:
        return work.stopped
    return "its deadline passed" if time.monotonic() > work.give_up_at else ""


def _slice_ends(copies: Copies) -> list[int]:
    """Return where to cut the ranges so that slices have about ``SLICE_BYTES``."""
    slices = np.cumsum(copies.lengths) // np.uint64(SLICE_BYTES)
    cuts = (np.flatnonzero(np.diff(slices)) + 1).tolist()
    return [*cuts, len(slices)] if len(slices) else []
