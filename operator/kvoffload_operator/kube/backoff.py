"""Exponential back-off with jitter, as numbers; whoever asks does the waiting."""

import random


class Backoff:
    """Delays that double up to a limit, each spread by up to a quarter.

    Jitter keeps many clients from returning to a restarted API server in step.

    Args:
        initial: First delay in seconds.
        maximum: Longest delay in seconds, before jitter.
        rng: Source of the jitter.
    """

    def __init__(self, *, initial: float, maximum: float, rng: random.Random | None = None) -> None:
        self._initial = initial
        self._maximum = maximum
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._next = initial

    def next(self) -> float:
        """Return the delay to wait now, in seconds, and grow the one after it."""
        delay = self._next
        self._next = min(self._next * 2, self._maximum)
        return delay * self._rng.uniform(1.0, 1.25)

    def reset(self) -> None:
        """Start again from the first delay, after a success."""
        self._next = self._initial
