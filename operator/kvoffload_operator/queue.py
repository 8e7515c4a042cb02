"""A deduplicating work queue: keys in, each handed to one worker at a time.

Semantics of client-go's workqueue, with two lanes as in controller-runtime's priority queue:

- a key that waits is not added twice;
- a key added while it is being processed ("dirty") is handed out again afterwards, never meanwhile;
- a failed key comes back after an exponential back-off of its own, with jitter;
- a user's change goes before a resync, but one resync in every few hand-outs always passes.

``QueueCore`` does no I/O and is given the time; ``WorkQueue`` adds waiting.
"""

import asyncio
import enum
import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# client-go's ItemExponentialFailureRateLimiter starts at 5 ms; its limit of 1,000 s is too long
# for somebody who waits for a policy, so the limit is one minute.
_FIRST_S: Final = 0.005
_LIMIT_S: Final = 60.0
# Without this share a steady stream of user changes would starve resyncs for ever.
_URGENT_IN_A_ROW: Final = 16


class Lane(enum.IntEnum):
    """Which keys go first."""

    CHANGE = 0
    RESYNC = 1


@dataclass(frozen=True, kw_only=True)
class _Waiting(Generic[K]):
    lane: Lane
    since: float


class QueueCore(Generic[K]):
    """The state of the queue; every method is given the time in seconds.

    Args:
        rng: Source of the jitter.
    """

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._lanes: dict[Lane, deque[K]] = {lane: deque() for lane in Lane}
        self._waiting: dict[K, _Waiting[K]] = {}
        self._processing: dict[K, float] = {}
        self._dirty: dict[K, Lane] = {}
        self._later: list[tuple[float, int, K, Lane]] = []
        self._sequence = 0
        self._failures: dict[K, int] = {}
        self._urgent_in_a_row = 0

    def add(self, key: K, *, now: float, lane: Lane = Lane.CHANGE) -> None:
        """Add a key, unless it waits already; a change promotes a waiting resync."""
        if key in self._processing:
            self._dirty[key] = min(lane, self._dirty.get(key, lane))
            return
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.lane <= lane:
            return
        # A promoted key leaves a stale place in the slower lane, which ``take`` skips.
        since = waiting.since if waiting else now
        self._waiting[key] = _Waiting(lane=lane, since=since)
        self._lanes[lane].append(key)

    def add_after(self, key: K, *, now: float, delay: float, lane: Lane = Lane.CHANGE) -> None:
        """Add a key ``delay`` seconds from now."""
        self._sequence += 1
        heapq.heappush(self._later, (now + delay, self._sequence, key, lane))

    def retry(self, key: K, *, now: float) -> float:
        """Add a failed key after its back-off, and return that in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2**30 s is far beyond the limit; a larger exponent would only cost time.
        delay = min(_FIRST_S * 2.0 ** min(failures, 30), _LIMIT_S) * self._rng.uniform(1.0, 1.25)
        self.add_after(key, now=now, delay=delay)
        return delay

    def forget(self, key: K) -> None:
        """Start the key's back-off from the beginning, after a success."""
        self._failures.pop(key, None)

    def attempts(self, key: K) -> int:
        """Return how often the key failed in a row."""
        return self._failures.get(key, 0)

    def take(self, *, now: float) -> tuple[K, float] | None:
        """Hand out the next key and how long it waited in seconds, or ``None``."""
        while self._later and self._later[0][0] <= now:
            _, _, key, lane = heapq.heappop(self._later)
            self.add(key, now=now, lane=lane)
        for lane in self._order():
            places = self._lanes[lane]
            while places:
                key = places.popleft()
                waiting = self._waiting.get(key)
                if waiting is None or waiting.lane is not lane:
                    continue
                del self._waiting[key]
                self._processing[key] = now
                self._urgent_in_a_row = self._urgent_in_a_row + 1 if lane is Lane.CHANGE else 0
                return key, now - waiting.since
        return None

    def done(self, key: K, *, now: float) -> float:
        """End the processing of a key, and return how long it took in seconds."""
        started = self._processing.pop(key)
        lane = self._dirty.pop(key, None)
        if lane is not None:
            self.add(key, now=now, lane=lane)
        return now - started

    def due(self) -> float | None:
        """Return when the next delayed key is due, or ``None``."""
        return self._later[0][0] if self._later else None

    @property
    def depth(self) -> int:
        """How many keys wait to be handed out now."""
        return len(self._waiting)

    def processing(self) -> list[float]:
        """Return when each key in process was handed out."""
        return list(self._processing.values())

    def _order(self) -> tuple[Lane, ...]:
        if self._urgent_in_a_row >= _URGENT_IN_A_ROW:
            return (Lane.RESYNC, Lane.CHANGE)
        return (Lane.CHANGE, Lane.RESYNC)


class WorkQueue(Generic[K]):
    """A ``QueueCore`` that workers of one loop wait on.

    It hands out nothing until it is opened, which only the leader does; keys collect meanwhile.

    Args:
        clock: Monotonic seconds, the loop's own.
        added: Called at each add, for metrics.
    """

    def __init__(
        self, *, clock: Callable[[], float], added: Callable[[], None] = lambda: None
    ) -> None:
        self.core: QueueCore[K] = QueueCore()
        self._added = added
        self._clock = clock
        self._changed = asyncio.Event()
        self._open = False

    def open(self) -> None:
        """Let workers have keys."""
        self._open = True
        self._changed.set()

    def add(self, key: K, *, lane: Lane = Lane.CHANGE) -> None:
        """Add a key now."""
        self._added()
        self.core.add(key, now=self._clock(), lane=lane)
        self._changed.set()

    def add_after(self, key: K, *, delay: float) -> None:
        """Add a key ``delay`` seconds from now."""
        self.core.add_after(key, now=self._clock(), delay=delay)
        self._changed.set()

    def retry(self, key: K) -> float:
        """Add a failed key after its back-off, and return that in seconds."""
        delay = self.core.retry(key, now=self._clock())
        self._changed.set()
        return delay

    def done(self, key: K) -> float:
        """End the processing of a key, and return how long it took in seconds."""
        took = self.core.done(key, now=self._clock())
        self._changed.set()
        return took

    async def take(self) -> tuple[K, float]:
        """Wait for the next key, and return it and how long it waited; safe to cancel."""
        while True:
            if self._open and (taken := self.core.take(now=self._clock())) is not None:
                return taken
            self._changed.clear()
            due = self.core.due() if self._open else None
            timeout = None if due is None else max(0.0, due - self._clock())
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue
