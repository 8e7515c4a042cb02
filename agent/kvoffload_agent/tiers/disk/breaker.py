"""A circuit breaker: a disk that fails or does not answer is left alone for a while. No I/O."""

from __future__ import annotations

from typing import Final

# One bad sector is no bad disk; three failures in a row are.
FAILURES: Final = 3
# A loose cable is back within seconds; a dead disk costs one attempt a minute.
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 60.0


class Breaker:
    """Closed: everything passes. Open: nothing does. Then one attempt decides.

    ``now`` is monotonic seconds.
    """

    def __init__(self) -> None:
        self.opened = 0
        """How often it opened."""
        self.reason = ""
        """What opened it; ``""`` while closed."""
        self._failures = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._until = 0.0
        self._trying = False

    def allows(self, now: float) -> bool:
        """Whether something may be attempted; changes nothing."""
        return not self.reason or (now >= self._until and not self._trying)

    def begin(self) -> None:
        """Something is attempted; while open it is the only attempt."""
        self._trying = bool(self.reason)

    def succeeded(self) -> None:
        """An attempt ended well."""
        self.reason = ""
        self._failures = 0
        self._trying = False
        self._pause = FIRST_PAUSE_SECONDS

    def undecided(self) -> None:
        """An attempt was given up by others."""
        self._trying = False

    def failed(self, reason: str, *, now: float, at_once: bool = False) -> None:
        """An attempt failed. ``at_once``: more attempts would fail alike, as on a full disk."""
        self._failures += 1
        self._trying = False
        if self.reason:
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        elif self._failures < FAILURES and not at_once:
            return
        else:
            self.opened += 1
        self.reason = reason
        self._until = now + self._pause
