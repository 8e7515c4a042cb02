"""One rank's copies, made by the agent: threads that the event loop starts, stops and hears of."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterable
from typing import Final, Literal

from kvoffload_agent.copying.files import TensorCopy
from kvoffload_agent.copying.tensors import SharedTensors
from kvoffload_agent.memory.segment import Segment
from kvoffload_api.wire.messages import Plan, SegmentInfo
from kvoffload_client.carrier import HostCarrier
from kvoffload_client.copy import choose_copy
from kvoffload_client.jobs import Job, JobKey, JobResult
from kvoffload_client.lane import Lane, Work
from kvoffload_client.memory import KVAddresses
from kvoffload_client.segments import SegmentError, Segments

# A slice of 8 MiB ends within milliseconds, of a file that is read by position within some ten.
_HALT_SECONDS: Final = 5.0

Kind = Literal["load", "store"]


class Copier:
    """All methods belong to the event loop, and so do the calls of ``ended`` and ``unmapped``.

    Args:
        rank: whose segments the plans mean.
        tensors: the rank's KV memory, which the copier owns from now on.
        ended: called with a job's number and why it failed (``""``: it did not).
        unmapped: called with the numbers of segments that no copy uses any more.
    """

    def __init__(
        self,
        *,
        rank: int,
        tensors: SharedTensors,
        ended: Callable[[int, str], None],
        unmapped: Callable[[list[int]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tensors = tensors
        self._ended = ended
        self._waiting: list[Callable[[], None]] = []
        self._closing = False
        self._closed = False
        self._idle = threading.Condition()
        self._working: dict[int, Work] = {}
        self._segments = Segments(unmapped=lambda numbers: self._post(unmapped, numbers))
        _, copy = choose_copy()
        addresses = KVAddresses(tensors.memory, rank=rank)
        self._lanes = {
            kind: Lane(
                name=f"agent-{kind}-{rank}",
                carrier=HostCarrier(TensorCopy(tensors, copy)),
                addresses=addresses,
                segments=self._segments,
                ended=self._finished,
            )
            for kind in ("load", "store")
        }
        for lane in self._lanes.values():
            lane.start()

    async def map(self, segment: Segment) -> bool:
        """Map a segment, in a thread; False if it is gone, or the kernel refuses."""
        info = SegmentInfo(segment=segment.id, bytes=segment.bytes)
        try:
            fd = os.dup(segment.fd)
            await asyncio.to_thread(self._segments.map, [info], [fd])
        except (OSError, SegmentError):
            return False
        return not self._closing

    def unmap(self, numbers: Iterable[int]) -> None:
        """Unmap segments after the copies that use them."""
        self._segments.close(numbers)

    def start(self, kind: Kind, plan: Plan) -> None:
        """Queue a job behind the others of its direction."""
        work = Work(job=Job(JobKey(0, 0, plan.job), kind, plan), give_up_at=math.inf)
        with self._idle:
            self._working[plan.job] = work
        self._lanes[kind].submit(work)

    def stop(self, jobs: Iterable[int], reason: str) -> None:
        """Let jobs end at their next slice, as failed."""
        with self._idle:
            for job in jobs:
                if (work := self._working.get(job)) is not None:
                    work.stopped = work.stopped or reason

    def close(self, closed: Callable[[], None]) -> None:
        """Stop everything; ``closed`` is called once no copy touches any memory."""
        self._closing = True
        self._waiting.append(closed)
        self.stop(list(self._working), "its engine has left")
        self._close_if_idle()

    def halt(self) -> None:
        """Stop everything and wait for it: the agent ends, and its connections are closed next."""
        self.stop(list(self._working), "the agent is closing")
        with self._idle:
            self._idle.wait_for(lambda: not self._working, _HALT_SECONDS)

    # --- on a lane's thread ------------------------------------------------------------------

    def _finished(self, work: Work, result: JobResult) -> None:
        job = work.job.key.job
        with self._idle:
            del self._working[job]
            self._idle.notify_all()
        self._post(self._tell, job, work.stopped or result.reason)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    # --- on the event loop -------------------------------------------------------------------

    def _tell(self, job: int, reason: str) -> None:
        self._ended(job, reason)
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._closing or self._working:
            return
        if not self._closed:
            self._closed = True
            for lane in self._lanes.values():
                lane.close()
            self._segments.close_all()
            self._tensors.close()
        waiting, self._waiting = self._waiting, []
        for closed in waiting:
            closed()
