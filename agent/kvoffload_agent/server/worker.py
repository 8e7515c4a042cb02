"""One rank of an engine: what it has mapped, and how long it may take to map more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvoffload_agent.memory.arena import Row
from kvoffload_agent.server.connection import Connection
from kvoffload_api.wire.messages import Map, SegmentInfo, Unmap

# Registration with CUDA takes about 0.1 s a GB, mapping less (``datapath.md`` section 7); a
# segment of 4 GiB on a busy host stays far below.
MAP_SECONDS: Final = 30.0


class Worker:
    """``late(worker, segments)`` is called if a Map is not acknowledged in time."""

    def __init__(
        self, *, rank: int, connection: Connection, late: Callable[[Worker, list[int]], None]
    ) -> None:
        self.rank = rank
        self.connection = connection
        self._late = late
        self._mapped: set[int] = set()
        self._asked: dict[int, asyncio.TimerHandle] = {}

    def send_map(self, row: Row) -> None:
        """Hand out this rank's segment of a row, with a deadline for its acknowledgement."""
        segment = row.segments[self.rank]
        if segment.id in self._asked or segment.id in self._mapped:
            return
        loop = asyncio.get_running_loop()
        self.connection.holds_memory = True
        self._asked[segment.id] = loop.call_later(MAP_SECONDS, self._expired)
        self.connection.send(
            Map(segments=[SegmentInfo(segment=segment.id, bytes=segment.bytes)]),
            fds=[segment.fd],
        )

    def acknowledge(self, segments: list[int]) -> None:
        """Note mapped segments; ids that were never handed to it count for nothing."""
        for segment in segments:
            timer = self._asked.pop(segment, None)
            if timer is not None:
                timer.cancel()
                self._mapped.add(segment)

    def unmapped(self, segments: list[int]) -> None:
        """Note segments that it has no longer."""
        self._mapped.difference_update(segments)

    def send_unmap(self) -> None:
        """Ask it to give up everything."""
        held = sorted(self._mapped | set(self._asked))
        if held:
            self.connection.send(Unmap(segments=held))

    def has_mapped(self, row: Row) -> bool:
        """Whether it acknowledged this rank's segment of a row."""
        return row.segments[self.rank].id in self._mapped

    def forget(self) -> None:
        """Stop its deadlines: it has left."""
        for timer in self._asked.values():
            timer.cancel()
        self._asked.clear()

    def _expired(self) -> None:
        self._late(self, sorted(self._asked))
