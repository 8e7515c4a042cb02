"""What an engine may load within its steps, before their forward (``scheduler.md`` R7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# As long as the chunks of an answer are leased: later, the answer is no promise any more.
_KEPT_STEPS: Final = 2


@dataclass(slots=True)
class _Reservation:
    size: int
    age: int = 0


class SyncBudget:
    """Bytes that one worker may load before the forward of one step.

    A request has one reservation at most: asked again, it gives back the one before. In vLLM both
    count, so that a request that is asked about twice in a step (its allocation failed, or the
    engine looked ahead) takes twice its share, and may be answered "asynchronous" the second time
    though nothing else was loaded (``scheduler.md`` section 4, item 8).

    A reservation whose answer is used only in the next step counts in that one, until then in both.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[int, _Reservation] = {}
        self._used = 0

    @property
    def charged(self) -> int:
        """Bytes that are loaded in this step or promised; never more than ``limit``."""
        return self._used + sum(reservation.size for reservation in self._open.values())

    def reserve(self, request: int, size: int) -> bool:
        """Reserve bytes for a request instead of what it had; return whether they fit."""
        self.release(request)
        if size > self.limit - self.charged:
            return False
        self._open[request] = _Reservation(size)
        return True

    def release(self, request: int) -> None:
        """Give back a reservation that was not used, if there is one."""
        self._open.pop(request, None)

    def use(self, request: int, size: int) -> bool:
        """Load at most what was reserved; return False if there is no reservation any more."""
        reservation = self._open.pop(request, None)
        if reservation is None:
            return False
        self._used += min(size, reservation.size)
        return True

    def end_step(self) -> None:
        """A step is built: what was loaded in it is of no matter for the next one."""
        self._used = 0
        for request, reservation in list(self._open.items()):
            reservation.age += 1
            if reservation.age >= _KEPT_STEPS:
                self.release(request)
