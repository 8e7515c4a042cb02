"""What the worker side of a session has whoever copies: its connection, its results, waiting."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Final

from kvoffload_api.wire.messages import PROTOCOL_VERSION, Hello, Message, Welcome
from kvoffload_client.connection import Connection
from kvoffload_client.jobs import JobKey, JobResult
from kvoffload_client.settings import ClientSettings
from kvoffload_client.version import CLIENT_VERSION

# After a job was stopped, its slice of 8 MiB ends within milliseconds. A machine so loaded that
# this passes is beyond help, and reading a block too early would serve wrong bytes.
STOP_SECONDS: Final = 60.0
_TOO_LATE: Final = "it had to end before its blocks were written"


class RankSession(ABC):
    """One rank of an engine; call it from one thread. ``_changed`` guards what follows it."""

    def __init__(self, *, settings: ClientSettings, rank: int) -> None:
        self._settings = settings
        self._rank = rank
        self._changed = threading.Condition()
        self._link: tuple[int, int] | None = None
        self._results: list[JobResult] = []
        self._connection = Connection(
            path=settings.socket_path, hello=self._hello, handler=self, name=f"worker {rank}"
        )

    def start(self) -> None:
        """Begin to connect in the background and return at once."""
        self._connection.start()

    def wait_ready(self, *, timeout_seconds: float) -> bool:
        """Wait until the session is joined; for start-up and tests only."""
        with self._changed:
            return self._changed.wait_for(lambda: self._link is not None, timeout_seconds)

    @property
    def ready(self) -> bool:
        """Whether the session is joined and connected."""
        with self._changed:
            return self._link is not None

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
            return wanted.isdisjoint(self._unfinished)

        with self._changed:
            if self._changed.wait_for(idle, timeout_seconds):
                return frozenset()
            late = wanted.intersection(self._unfinished)
            self._stop(late, _TOO_LATE)
            if not self._changed.wait_for(idle, STOP_SECONDS):
                raise TimeoutError(f"copies {sorted(late)} did not stop in {STOP_SECONDS:g} s")
            return late

    @property
    @abstractmethod
    def _unfinished(self) -> Collection[JobKey]:
        """Jobs that may still touch KV memory; ``_changed`` is held."""

    @abstractmethod
    def _stop(self, keys: Iterable[JobKey], reason: str) -> None:
        """Let unfinished jobs end soon, as failed; ``_changed`` is held."""

    # --- the connection's thread -------------------------------------------------------------

    @abstractmethod
    def opened(self, *, boot_id: int, welcome: Welcome) -> None:
        """See ``connection.Handler``."""

    @abstractmethod
    def received(self, message: Message, fds: list[int]) -> None:
        """See ``connection.Handler``."""

    @abstractmethod
    def closed(self) -> None:
        """See ``connection.Handler``."""

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            role="worker",
            session_key=self._settings.session_key,
            rank=self._rank,
            token=self._settings.read_token(),
            client_version=CLIENT_VERSION,
        )
