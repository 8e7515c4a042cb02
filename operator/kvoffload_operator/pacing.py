"""A token bucket: so many writes a second, and a burst of so many."""

import asyncio
from collections.abc import Callable


class TokenBucket:
    """Spaces out callers; each gets the next free moment, in order of asking.

    Args:
        rate: Tokens that arrive per second.
        burst: Tokens that may be saved up.
        clock: Monotonic seconds.
    """

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock()

    def reserve(self) -> float:
        """Take one token, and return after how many seconds it may be used."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._rate)

    async def acquire(self) -> None:
        """Wait for one token; a cancelled wait keeps its token taken, which only errs to slow."""
        delay = self.reserve()
        if delay > 0.0:
            await asyncio.sleep(delay)
