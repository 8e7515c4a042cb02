"""Threads for blocking work that may never return."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Work = Callable[[], Any]
Done = Callable[[Any, BaseException | None], None]


class Workers:
    """Runs work in threads; results are taken by ``results`` in the event loop's thread.

    The threads are daemons: one that hangs in the kernel must not keep the agent from ending.
    """

    def __init__(self, *, name: str, threads: int, woken: Callable[[], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, Done] | None] = queue.SimpleQueue()
        self._ended: deque[tuple[Done, Any, BaseException | None]] = deque()
        self._threads = threads
        self._woken = woken
        for number in range(threads):
            threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Work, done: Done) -> None:
        """Run ``work`` in a thread and later hand its result to ``done`` in ``results``."""
        self._queue.put((work, done))

    def results(self) -> None:
        """Hand over what ended since the last call."""
        while self._ended:
            done, value, error = self._ended.popleft()
            done(value, error)

    def close(self) -> None:
        """Let every thread end after what is queued."""
        for _ in range(self._threads):
            self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            value, error = None, None
            try:
                value = work()
            except BaseException as caught:  # noqa: BLE001 - whoever submitted it decides
                error = caught
            self._ended.append((done, value, error))
            self._woken()
