"""Drops stores to a tier that cannot keep up (``scheduler.md`` 6.10); loads are never dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_ALPHA: Final = 0.15
_WARM_UP: Final = 10
_IDLE_HALF_LIFE_SECONDS: Final = 2.0
_COOL_DOWN_SECONDS: Final = 1.0
_COOL_DOWN_RATE: Final = 0.5
_FAILURES: Final = 3
_FAILED_FACTOR: Final = 4.0
_MIB: Final = float(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Seconds per MiB above which pressure begins and below which it ends."""

    high: float = 0.010
    low: float = 0.002

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ValueError(f"marks must be 0 < low <= high, not {self.low} and {self.high}")


LOCAL: Final = Marks()
REMOTE: Final = Marks(high=0.050, low=0.010)


def marks_of(locality: str | None) -> Marks:
    """Return the marks of a tier that is ``local`` or ``remote``."""
    return REMOTE if locality == "remote" else LOCAL


class BackPressure:
    """Of one tier. ``now`` is monotonic seconds; constants are those of the specification."""

    def __init__(self, marks: Marks = LOCAL) -> None:
        self.marks = marks
        self.pressed = False
        self.ema = 0.0
        self._count = 0
        self._failures = 0
        self._dropped = 0.0
        self._seen_at: float | None = None
        self._cool_until = 0.0

    def completed(self, *, size: int, seconds: float, now: float) -> None:
        """Take a store of ``size`` bytes that ended well; empty ones say nothing."""
        if size <= 0:
            return
        self._decay(now)
        self._failures = 0
        self._count += 1
        # A mean at first, so that one slow store after the start does not count for many.
        share = _ALPHA if self._count > _WARM_UP else 1 / self._count
        self.ema += share * (max(seconds, 0.0) / (size / _MIB) - self.ema)
        self._seen_at = now
        self._judge(now)

    def failed(self, *, now: float) -> None:
        """Take a store that failed; three in a row are pressure, warm or not."""
        self._decay(now)
        self._failures += 1
        self._seen_at = now
        if self._failures >= _FAILURES:
            self.ema = _FAILED_FACTOR * self.marks.high
            self._count = max(self._count, _WARM_UP)
            self._judge(now)

    def rate(self, now: float) -> float:
        """Return the share of stores to drop."""
        self._decay(now)
        self._judge(now)
        if self.pressed:
            return max(0.0, min(1.0, (self.ema - self.marks.high) / self.marks.high / 2))
        return _COOL_DOWN_RATE if now < self._cool_until else 0.0

    def drops(self, now: float) -> bool:
        """Say whether the next store is dropped; over many, exactly the rate is."""
        rate = self.rate(now)
        if not rate:
            self._dropped = 0.0
            return False
        self._dropped += rate
        if self._dropped < 1.0:
            return False
        self._dropped -= 1.0
        return True

    def _decay(self, now: float) -> None:
        """Forget with time, but only while stores are dropped: else rare slow ones go unseen."""
        if self.pressed and self._seen_at is not None and now > self._seen_at:
            self.ema *= 0.5 ** ((now - self._seen_at) / _IDLE_HALF_LIFE_SECONDS)
            self._seen_at = now

    def _judge(self, now: float) -> None:
        if self._count < _WARM_UP:
            return
        if self.ema > self.marks.high:
            self.pressed = True
        elif self.pressed and self.ema < self.marks.low:
            self.pressed = False
            self._cool_until = now + _COOL_DOWN_SECONDS
