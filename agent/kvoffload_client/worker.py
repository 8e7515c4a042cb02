"""The worker side of an engine's session: maps segments, copies, reports."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterable

from kvoffload_api.wire.framing import FramingError
from kvoffload_api.wire.messages import (
    CapsChanged,
    Complete,
    Map,
    Mapped,
    Message,
    Refused,
    Unmap,
    Unmapped,
    Welcome,
)
from kvoffload_client.carrier import Carrier, DeviceError, HostCarrier, Mark
from kvoffload_client.copy import choose_copy
from kvoffload_client.cuda import Device
from kvoffload_client.cuda.carrier import CudaCarrier
from kvoffload_client.cuda.pins import Pins
from kvoffload_client.jobs import Job, JobKey, JobResult, Kind
from kvoffload_client.lane import Lane, Work
from kvoffload_client.layout import KVMemory
from kvoffload_client.memory import KVAddresses
from kvoffload_client.rank import STOP_SECONDS, RankSession
from kvoffload_client.segments import SegmentError, Segments
from kvoffload_client.settings import ClientSettings

_log = logging.getLogger(__name__)


class WorkerSession(RankSession):
    """One rank's copies; call it from one thread.

    Copies run on the session's own threads, in order per direction. Nothing raises because of the
    agent, nor of a GPU: a job that cannot be done fails.

    Args:
        settings: how the agent is reached.
        rank: of the engine.
        memory: where its KV blocks are, on ``device`` if there is one.
        device: the GPU that copies; None: this machine's cores do. With one, jobs must be
            submitted on a thread that queues the engine's work: what is queued by then comes first.
    """

    def __init__(
        self,
        *,
        settings: ClientSettings,
        rank: int,
        memory: KVMemory,
        device: Device | None = None,
    ) -> None:
        super().__init__(settings=settings, rank=rank)
        self._working: dict[JobKey, Work] = {}
        self._device = device
        pins = Pins(device) if device is not None else None
        self._segments = Segments(unmapped=self._send_unmapped, pins=pins)
        self.copy_name, copy = choose_copy() if device is None else ("cuda", None)
        addresses = KVAddresses(memory, rank=rank)

        def carrier(kind: Kind) -> Carrier:
            if copy is not None:
                return HostCarrier(copy)
            assert device is not None
            assert pins is not None
            return CudaCarrier(device, pins, kind)

        def lane(kind: Kind) -> Lane:
            return Lane(
                name=f"{kind}-{rank}",
                carrier=carrier(kind),
                addresses=addresses,
                segments=self._segments,
                ended=self._ended,
            )

        self._loads, self._stores = lane("load"), lane("store")

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        self._loads.start()
        self._stores.start()
        super().start()

    def close(self) -> None:
        """Stop copies, unmap every segment, close the connection and end the threads."""
        self._connection.close()
        with self._changed:
            self._stop(self._working, "the worker is closing")
        self._loads.close()
        self._stores.close()
        self._segments.close_all()

    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of every mapped segment; for tests that look at all of them."""
        return self._segments.ranges()

    def submit_load(self, job: Job) -> None:
        """Queue a load; its deadline starts now. Returns at once."""
        seconds = job.deadline_seconds if job.deadline_seconds > 0 else math.inf
        self._submit(self._loads, Work(job=job, give_up_at=time.monotonic() + seconds))

    def submit_store(self, job: Job) -> None:
        """Queue a store; its blocks must be complete. Returns at once."""
        self._submit(self._stores, Work(job=job, give_up_at=math.inf))

    def _submit(self, lane: Lane, work: Work) -> None:
        try:
            work.mark = self._mark()
        except DeviceError as error:
            work.stopped = f"the GPU failed: {error}"
        with self._changed:
            if self._link != (work.job.key.boot_id, work.job.key.session):
                work.stopped = "its session is over"
            self._working[work.job.key] = work
        lane.submit(work)

    def _mark(self) -> Mark | None:
        return self._device.mark() if self._device is not None else None

    @property
    def _unfinished(self) -> Collection[JobKey]:
        return self._working

    def _stop(self, keys: Iterable[JobKey], reason: str) -> None:
        for key in keys:
            self._working[key].stopped = self._working[key].stopped or reason

    def _ended(self, work: Work, result: JobResult) -> None:
        key = work.job.key
        with self._changed:
            if work.stopped and result.ok:
                result = JobResult(key, result.kind, result.handle, False, 0, work.stopped)
            if self._working.get(key) is work:
                del self._working[key]
            self._results.append(result)
            if self._link == (key.boot_id, key.session):
                done, failed = ([key.job], []) if result.ok else ([], [key.job])
                self._connection.send(Complete(done=done, failed=failed))
            self._changed.notify_all()
        if not result.ok:
            _log.info("%s of job %d failed: %s", result.kind, key.job, result.reason)

    # --- the connection's thread -------------------------------------------------------------

    def opened(self, *, boot_id: int, welcome: Welcome) -> None:
        """Take part in the session that the agent named."""
        with self._changed:
            self._link = (boot_id, welcome.session)
            self._changed.notify_all()
        self._connection.settle()

    def received(self, message: Message, fds: list[int]) -> None:
        """Map and unmap what the agent says."""
        match message:
            case Map(segments=infos):
                try:
                    numbers = self._segments.map(infos, fds)
                except SegmentError as error:
                    raise FramingError(f"cannot map: {error}") from error
                self._connection.send(Mapped(segments=numbers))
            case Unmap(segments=numbers):
                self._segments.close(numbers)
            case CapsChanged():
                pass
            case Refused(code=code, message=text):
                raise FramingError(f"refused, {code}: {text}")
            case _:
                raise FramingError(f"{type(message).__name__} is not for a worker")

    def closed(self) -> None:
        """Fail what is in flight and unmap everything: the agent is gone.

        The connection's end stays open until this returns, and tells the agent that no copy of
        ours touches its memory any more.
        """
        with self._changed:
            self._link = None
            self._stop(self._working, "the agent is gone")
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._working, STOP_SECONDS):
                _log.error("copies did not stop in %g s", STOP_SECONDS)
        self._segments.close_all()

    def _send_unmapped(self, numbers: list[int]) -> None:
        self._connection.send(Unmapped(segments=numbers))
