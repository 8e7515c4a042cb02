"""Reads and writes under way: threads, deadlines, and when to leave the disk alone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kvoffload_agent.tiers.disk.breaker import Breaker
from kvoffload_agent.tiers.disk.layout import DamagedError
from kvoffload_agent.tiers.disk.rows import Cancel, CancelledError, VanishedError
from kvoffload_agent.tiers.disk.workers import Workers

# A pack of 64 MiB takes about a second on a slow disk; an engine's load deadline is of this order.
TRANSFER_SECONDS: Final = 30.0
# Loads wait for stores nowhere: threads of their own. A disk's queue is full with so many.
READERS: Final = 4
WRITERS: Final = 2

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """One pack that a thread reads or writes. ``ended(error, value)`` is called once, in time."""

    load: bool
    deadline: float
    cancel: Cancel
    ended: Callable[[BaseException | None, Any], None]
    settled: bool = False

    def settle(self, error: BaseException | None, value: Any = None) -> None:
        """Tell whoever waits, unless they were told that it took too long."""
        if not self.settled:
            self.settled = True
            self.ended(error, value)


class Transfers:
    """Belongs to the event loop's thread; ``clock`` is monotonic seconds."""

    def __init__(self, *, clock: Callable[[], float], woken: Callable[[], None]) -> None:
        self.loads, self.stores = Breaker(), Breaker()
        self._clock = clock
        self._transfers: set[Transfer] = set()
        self._readers = Workers(name="disk-read", threads=READERS, woken=woken)
        self._writers = Workers(name="disk-write", threads=WRITERS, woken=woken)

    def begin(
        self,
        work: Callable[[], Any],
        *,
        load: bool,
        cancel: Cancel,
        ended: Callable[[BaseException | None, Any], None],
        returned: Callable[[BaseException | None, Any], None],
    ) -> Transfer:
        """Run ``work`` in a thread.

        ``ended`` is called within ``TRANSFER_SECONDS`` in any case; ``returned`` when the thread
        has ended, however late, and before ``ended`` if it is in time.
        """
        (self.loads if load else self.stores).begin()
        transfer = Transfer(
            load=load, deadline=self._clock() + TRANSFER_SECONDS, cancel=cancel, ended=ended
        )
        self._transfers.add(transfer)

        def done(value: Any, error: BaseException | None) -> None:
            self._transfers.discard(transfer)
            if not transfer.settled:
                self._judge(transfer, error)
            returned(error, value)
            transfer.settle(error, value)

        (self._readers if load else self._writers).submit(work, done)
        return transfer

    def _judge(self, transfer: Transfer, error: BaseException | None) -> None:
        breaker = self.loads if transfer.load else self.stores
        if isinstance(error, OSError):
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            breaker.failed(str(error.strerror), now=self._clock(), at_once=full)
            if breaker.reason:
                _log.warning("disk is left alone", loads=transfer.load, reason=breaker.reason)
        elif isinstance(error, CancelledError):
            breaker.undecided()
        else:  # a damaged or vanished file is no failing disk
            breaker.succeeded()

    def poll(self) -> None:
        """Take in what threads ended, and end what took too long."""
        self._readers.results()
        self._writers.results()
        now = self._clock()
        for transfer in [item for item in self._transfers if now >= item.deadline]:
            if not transfer.settled:
                transfer.cancel.cancel()
                breaker = self.loads if transfer.load else self.stores
                breaker.failed("the disk does not answer", now=now)
                transfer.settle(TimeoutError(f"not done within {TRANSFER_SECONDS:.0f} s"))

    def close(self) -> None:
        """End every transfer."""
        for transfer in self._transfers:
            transfer.cancel.cancel()
        self._readers.close()
        self._writers.close()


def reason_of(error: BaseException) -> str:
    """Return why a transfer failed, one of few words for a metric's label."""
    if isinstance(error, DamagedError):
        return error.reason
    if isinstance(error, VanishedError):
        return "vanished"
    if isinstance(error, CancelledError):
        return "cancelled"
    if isinstance(error, TimeoutError):
        return "deadline"
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, "error")
    return "internal"
