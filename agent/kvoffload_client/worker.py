"""The worker side of an engine's session: maps segments, copies, reports."""

from __future__ import annotations

from collections.abc import Iterable

from kvoffload_client.jobs import Job, JobKey, JobResult
from kvoffload_client.layout import KVMemory
from kvoffload_client.settings import ClientSettings


class WorkerSession:
    """One rank's copies; call it from one thread.

    Copies run on the session's own threads, in order per direction. Nothing raises because of the
    agent: a job that cannot be done fails.
    """

    def __init__(self, *, settings: ClientSettings, rank: int, memory: KVMemory) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        raise NotImplementedError

    def wait_ready(self, *, timeout_seconds: float) -> bool:
        """Wait until the session is joined; for start-up and tests only."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop copies, unmap every segment, close the connection and end the threads."""
        raise NotImplementedError

    @property
    def ready(self) -> bool:
        """Whether the session is joined and connected."""
        raise NotImplementedError

    def submit_load(self, job: Job) -> None:
        """Queue a load; its deadline starts now. Returns at once."""
        raise NotImplementedError

    def submit_store(self, job: Job) -> None:
        """Queue a store; its blocks must be complete. Returns at once."""
        raise NotImplementedError

    def poll(self) -> list[JobResult]:
        """Return jobs that ended since the last call, each exactly once. Never waits."""
        raise NotImplementedError

    def wait(self, keys: Iterable[JobKey], *, timeout_seconds: float) -> frozenset[JobKey]:
        """Wait until these jobs no longer touch KV memory; unknown and ended ones count as that.

        Jobs that take longer are stopped: they fail, and are returned. After the call no byte of
        their blocks is read or written any more. Their results still come from ``poll``.
        """
        raise NotImplementedError
