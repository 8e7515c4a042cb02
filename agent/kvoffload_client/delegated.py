"""The worker side of a session for which the agent copies (DESIGN section 4, "Who copies").

The engine's KV memory is in files that the agent opens; the agent's own memory never gets here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kvoffload_api.wire.copying import Copied, Share, Shared, SharedLayer, Start, Stop
from kvoffload_api.wire.framing import FramingError
from kvoffload_api.wire.messages import (
    CapsChanged,
    Message,
    Refused,
    Welcome,
)
from kvoffload_client.jobs import Job, JobKey, JobResult
from kvoffload_client.layout import SharedKVLayer, SharedKVMemory
from kvoffload_client.rank import RankSession
from kvoffload_client.settings import ClientSettings

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Handed:
    """A job that the agent has. ``give_up_at``: monotonic seconds, None: never."""

    job: Job
    give_up_at: float | None
    stopped: str = ""


class DelegatedWorkerSession(RankSession):
    """One rank whose copies the agent makes; call it from one thread.

    It is used as ``WorkerSession`` is, with ``EngineLayout.copies`` being ``agent``. What the
    agent has begun it may still write until it says that it ended, or until its connection is
    closed: a load whose deadline passed is asked to stop, and is reported once it did.
    """

    def __init__(self, *, settings: ClientSettings, rank: int, memory: SharedKVMemory) -> None:
        super().__init__(settings=settings, rank=rank)
        self._share, self._files = _share_of(memory)
        self._block_bytes = [sum(layer.block_bytes for layer in group) for group in memory]
        self._joining: tuple[int, int] | None = None
        self._handed: dict[JobKey, _Handed] = {}

    def close(self) -> None:
        """Close the connection; the agent ends its copies before it lets anyone have its memory.

        The files must stay allocated until the agent has closed its end, which is soon.
        """
        self._connection.close()

    def mapped_ranges(self) -> list[tuple[int, int]]:
        """Return nothing: no memory of the agent is ever mapped here."""
        return []

    def submit_load(self, job: Job) -> None:
        """Have a load begun; its deadline starts now. Returns at once."""
        self._submit(job, job.deadline_seconds)

    def submit_store(self, job: Job) -> None:
        """Have a store begun; its blocks must be complete. Returns at once."""
        self._submit(job, 0.0)

    def poll(self) -> list[JobResult]:
        """Return jobs that ended since the last call, each exactly once. Never waits."""
        with self._changed:
            now = time.monotonic()
            late = [
                key
                for key, handed in self._handed.items()
                if handed.give_up_at is not None and now > handed.give_up_at
            ]
            self._stop(late, "its deadline passed")
        return super().poll()

    def _submit(self, job: Job, deadline_seconds: float) -> None:
        give_up_at = time.monotonic() + deadline_seconds if deadline_seconds > 0 else None
        with self._changed:
            linked = self._link == (job.key.boot_id, job.key.session)
            if linked and self._connection.send(Start(jobs=[job.key.job])):
                self._handed[job.key] = _Handed(job=job, give_up_at=give_up_at)
            else:
                self._results.append(_result(job, reason="its session is over"))
                self._changed.notify_all()

    @property
    def _unfinished(self) -> Collection[JobKey]:
        return self._handed

    def _stop(self, keys: Iterable[JobKey], reason: str) -> None:
        fresh = [handed for key in keys if not (handed := self._handed[key]).stopped]
        for handed in fresh:
            handed.stopped = reason
        if fresh:
            self._connection.send(Stop(jobs=[handed.job.key.job for handed in fresh]))

    def _ended(self, number: int, reason: str) -> None:
        if self._link is None:
            return
        handed = self._handed.pop(JobKey(*self._link, number), None)
        if handed is None:
            return
        reason = reason or handed.stopped
        nbytes = 0 if reason else self._bytes_of(handed.job)
        self._results.append(_result(handed.job, reason=reason, nbytes=nbytes))
        if reason:
            _log.info("%s of job %d failed: %s", handed.job.kind, number, reason)

    def _bytes_of(self, job: Job) -> int:
        sizes = zip(job.plan.group_sizes, self._block_bytes, strict=True)
        return sum(count * size for count, size in sizes)

    # --- the connection's thread -------------------------------------------------------------

    def opened(self, *, boot_id: int, welcome: Welcome) -> None:
        """Share the KV memory."""
        self._joining = (boot_id, welcome.session)
        if not self._connection.send(self._share, fds=self._files):
            raise FramingError("the KV memory could not be shared with the agent")

    def received(self, message: Message, fds: list[int]) -> None:  # noqa: ARG002 - none ever come
        """Take part in the session, and note what ended."""
        match message:
            case Shared():
                with self._changed:
                    self._link = self._joining
                    self._changed.notify_all()
                self._connection.settle()
            case Copied(done=done, failed=failed):
                with self._changed:
                    for job in done:
                        self._ended(job, "")
                    for item in failed:
                        self._ended(item.job, item.reason)
                    self._changed.notify_all()
            case CapsChanged():
                pass
            case Refused(code=code, message=text):
                raise FramingError(f"refused, {code}: {text}")
            case _:
                raise FramingError(f"{type(message).__name__} is not for a worker")

    def closed(self) -> None:
        """Fail what is in flight: the agent closes its end only after its copies have ended."""
        with self._changed:
            self._link = None
            handed, self._handed = list(self._handed.values()), {}
            for item in handed:
                self._results.append(_result(item.job, reason="the agent is gone"))
            self._changed.notify_all()


def _result(job: Job, *, reason: str, nbytes: int = 0) -> JobResult:
    return JobResult(job.key, job.kind, job.handle, not reason, nbytes, reason)


def _share_of(memory: SharedKVMemory) -> tuple[Share, list[int]]:
    """Return the message, and the distinct descriptors in the order in which it counts them."""
    files: dict[int, int] = {}

    def layer_of(layer: SharedKVLayer) -> SharedLayer:
        return SharedLayer(
            file=files.setdefault(layer.file, len(files)),
            offset=layer.offset,
            num_blocks=layer.num_blocks,
            block_stride=layer.block_stride,
            block_bytes=layer.block_bytes,
        )

    groups = [[layer_of(layer) for layer in group] for group in memory]
    return Share(files=len(files), groups=groups), list(files)
