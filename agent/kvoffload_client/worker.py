"""The worker side of an engine's session: maps segments, copies, reports."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterable
from typing import Final

from kvoffload_api.wire.framing import FramingError
from kvoffload_api.wire.messages import (
    PROTOCOL_VERSION,
    CapsChanged,
    Complete,
    Hello,
    Map,
    Mapped,
    Message,
    Refused,
    Unmap,
    Unmapped,
    Welcome,
)
from kvoffload_client.connection import Connection
from kvoffload_client.copy import choose_copy
from kvoffload_client.jobs import Job, JobKey, JobResult
from kvoffload_client.lane import Lane, Work
from kvoffload_client.layout import KVMemory
from kvoffload_client.memory import KVAddresses
from kvoffload_client.segments import SegmentError, Segments
from kvoffload_client.settings import ClientSettings
from kvoffload_client.version import CLIENT_VERSION

_log = logging.getLogger(__name__)

# After a job was stopped, its slice of 8 MiB ends within milliseconds. A machine so loaded that
# this passes is beyond help, and reading a block too early would serve wrong bytes.
_STOP_SECONDS: Final = 60.0


class WorkerSession:
    """One rank's copies; call it from one thread.

    Copies run on the session's own threads, in order per direction. Nothing raises because of the
    agent: a job that cannot be done fails.
    """

    def __init__(self, *, settings: ClientSettings, rank: int, memory: KVMemory) -> None:
        self._settings = settings
        self._rank = rank
        self._changed = threading.Condition()
        self._link: tuple[int, int] | None = None
        self._working: dict[JobKey, Work] = {}
        self._results: list[JobResult] = []
        self._segments = Segments(unmapped=self._send_unmapped)
        self.copy_name, copy = choose_copy()
        addresses = KVAddresses(memory, rank=rank)

        def lane(kind: str) -> Lane:
            return Lane(
                name=f"{kind}-{rank}",
                copy=copy,
                addresses=addresses,
                segments=self._segments,
                ended=self._ended,
            )

        self._loads, self._stores = lane("load"), lane("store")
        self._connection = Connection(
            path=settings.socket_path, hello=self._hello, handler=self, name=f"worker {rank}"
        )

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        self._loads.start()
        self._stores.start()
        self._connection.start()

    def wait_ready(self, *, timeout_seconds: float) -> bool:
        """Wait until the session is joined; for start-up and tests only."""
        with self._changed:
            return self._changed.wait_for(lambda: self._link is not None, timeout_seconds)

    def close(self) -> None:
        """Stop copies, unmap every segment, close the connection and end the threads."""
        self._connection.close()
        with self._changed:
            self._stop_all("the worker is closing")
        self._loads.close()
        self._stores.close()
        self._segments.close_all()

    @property
    def ready(self) -> bool:
        """Whether the session is joined and connected."""
        with self._changed:
            return self._link is not None

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

    def poll(self) -> list[JobResult]:
        """Return jobs that ended since the last call, each exactly once. Never waits."""
        with self._changed:
            results, self._results = self._results, []
            return results

    def wait(self, keys: Iterable[JobKey], *, timeout_seconds: float) -> frozenset[JobKey]:
        """Wait until these jobs no longer touch KV memory; unknown and ended ones count as that.

        Jobs that take longer are stopped: they fail, and are returned. After the call no byte of
        their blocks is read or written any more. Their results still come from ``poll``.

        Raises:
            TimeoutError: a copy did not stop; the engine must not go on, since the bytes of these
                blocks are not its own.
        """
        wanted = frozenset(keys)

        def idle() -> bool:
            return wanted.isdisjoint(self._working)

        with self._changed:
            if self._changed.wait_for(idle, timeout_seconds):
                return frozenset()
            late = wanted & self._working.keys()
            for key in late:
                self._working[key].stopped = "it had to end before its blocks were written"
            if not self._changed.wait_for(idle, _STOP_SECONDS):
                raise TimeoutError(f"copies {sorted(late)} did not stop in {_STOP_SECONDS:g} s")
            return late

    def _submit(self, lane: Lane, work: Work) -> None:
        with self._changed:
            if self._link != (work.job.key.boot_id, work.job.key.session):
                work.stopped = "its session is over"
            self._working[work.job.key] = work
        lane.submit(work)

    def _stop_all(self, reason: str) -> None:
        for work in self._working.values():
            work.stopped = work.stopped or reason

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
            self._stop_all("the agent is gone")
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: not self._working, _STOP_SECONDS):
                _log.error("copies did not stop in %g s", _STOP_SECONDS)
        self._segments.close_all()

    def _send_unmapped(self, numbers: list[int]) -> None:
        self._connection.send(Unmapped(segments=numbers))

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            role="worker",
            session_key=self._settings.session_key,
            rank=self._rank,
            token=self._settings.read_token(),
            client_version=CLIENT_VERSION,
        )
