"""The pressure loop: looks when the kernel tells or time has passed, and moves the ceiling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import structlog

from kvoffload_agent.memory.arena import Arena
from kvoffload_agent.memory.notifications import Notifications
from kvoffload_agent.memory.pressure import Hold, Shrink, State, Step, decide
from kvoffload_agent.memory.snapshot import Snapshot

# Without notifications: a neighbour that allocates 100 MB/s takes less than a margin meanwhile,
# and a look costs under 1 ms.
LOOK_SECONDS: Final = 0.25
# News of reclaim come in thousands a second; what was given back shows after some milliseconds.
MIN_GAP_SECONDS: Final = 0.02

_log = structlog.get_logger(__name__)


class Keeper(Protocol):
    """Who decides which segments are kept; ``PartitionManager`` is one."""

    ceiling: int | None
    """Bytes that all segments may have together under pressure; None: no bound."""

    def wake(self) -> None:
        """Follow a new ceiling now."""


class PressureLoop:
    """Owns the ceiling of a keeper.

    ``policy``: bytes that policy allows. ``on_step``: told each Shrink and Grow.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        arena: Arena,
        keeper: Keeper,
        policy: Callable[[], int],
        clock: Callable[[], float],
        on_step: Callable[[Step], None],
        root: Path = Path("/"),
    ) -> None:
        self._snapshot = snapshot
        self._arena = arena
        self._keeper = keeper
        self._policy = policy
        self._clock = clock
        self._on_step = on_step
        self._root = root
        self._state = State()

    async def run(self) -> None:
        """Look until cancelled."""
        news = asyncio.Event()
        loop = asyncio.get_running_loop()
        notifications = Notifications(root=self._root)
        loop.add_reader(notifications.fileno(), news.set)
        _log.info("memory pressure is watched", notifications=notifications.listening)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    # Not wait_for: see PartitionManager.run.
                    async with asyncio.timeout(LOOK_SECONDS):
                        await news.wait()
                # First acknowledged, then read: what comes in between is news again.
                loop.remove_reader(notifications.fileno())
                stalled = notifications.take()
                news.clear()
                self.look(stalled=stalled)
                notifications.follow_limits()
                await asyncio.sleep(MIN_GAP_SECONDS)
                loop.add_reader(notifications.fileno(), news.set)
        finally:
            loop.remove_reader(notifications.fileno())
            notifications.close()

    def look(self, *, stalled: bool = False) -> Step:
        """Decide from a fresh snapshot and move the ceiling."""
        step, self._state = decide(
            self._snapshot(),
            self._state,
            now=self._clock(),
            populated=self._arena.usage.populated,
            budget=self._policy(),
            stalled=stalled,
            reserved=self._arena.reserved,
        )
        if isinstance(step, Hold):
            return step
        self._keeper.ceiling = step.ceiling
        self._keeper.wake()
        self._on_step(step)
        if isinstance(step, Shrink):
            _log.warning(
                "memory is short, segments are given back",
                bytes=step.bytes,
                ceiling=step.ceiling,
                limited_by=step.limited_by,
                slack=step.slack,
                stalled=stalled,
            )
        else:
            _log.info("memory is free again", ceiling=step.ceiling, slack=step.slack)
        return step
