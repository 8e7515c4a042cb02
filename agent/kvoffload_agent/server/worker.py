"""One rank of an engine: what it has mapped, and how long it may take to map more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kvoffload_agent.memory.arena import Row
from kvoffload_agent.memory.segment import Segment
from kvoffload_agent.server.connection import Connection
from kvoffload_api.wire.messages import Map, SegmentInfo, Unmap

# Registration with CUDA takes about 0.1 s a GB, mapping less (``datapath.md`` section 7); a
# segment of 4 GiB on a busy host stays far below.
MAP_SECONDS: Final = 30.0


class Worker:
    """``late(worker, segments)`` is called if a Map or Unmap is not acknowledged in time."""

    def __init__(
        self, *, rank: int, connection: Connection, late: Callable[[Worker, list[int]], None]
    ) -> None:
        self.rank = rank
        self.connection = connection
        self._late = late
        self.held: dict[int, int] = {}
        """Bytes of each segment that it has, or may have, mapped."""
        self._mapped: set[int] = set()
        self._asked: dict[int, asyncio.TimerHandle] = {}
        self._leaving: dict[int, asyncio.TimerHandle] = {}

    def send_map(self, row: Row) -> None:
        """Hand out this rank's segment of a row, with a deadline for its acknowledgement."""
        segment = row.segments[self.rank]
        if segment.id in self._asked or segment.id in self._mapped:
            return
        loop = asyncio.get_running_loop()
        self._asked[segment.id] = loop.call_later(MAP_SECONDS, self._expired)
        self.held[segment.id] = segment.bytes
        self._hand_out(segment)

    def acknowledge(self, segments: list[int]) -> None:
        """Note mapped segments; ids that were never handed to it count for nothing."""
        for segment in segments:
            timer = self._asked.pop(segment, None)
            if timer is not None:
                timer.cancel()
                self._mapped.add(segment)

    def send_unmap(self, row: Row) -> None:
        """Ask for this rank's segment of a row back, once, with the same deadline as for a Map."""
        segment = row.segments[self.rank]
        if segment.id in self._leaving or not self.holds(row):
            return
        loop = asyncio.get_running_loop()
        self._leaving[segment.id] = loop.call_later(MAP_SECONDS, self._expired)
        self._ask_back(segment)

    def unmapped(self, segments: list[int]) -> None:
        """Note segments that it gave back when asked; others it may still be asked to use."""
        for segment in segments:
            timer = self._leaving.pop(segment, None)
            if timer is not None:
                timer.cancel()
                self._mapped.discard(segment)
                self.held.pop(segment, None)

    def holds(self, row: Row) -> bool:
        """Whether it has, or may have, this rank's segment of a row mapped."""
        segment = row.segments[self.rank].id
        return segment in self._mapped or segment in self._asked

    def has_mapped(self, row: Row) -> bool:
        """Whether it acknowledged this rank's segment of a row."""
        return row.segments[self.rank].id in self._mapped

    def forget(self) -> None:
        """Stop its deadlines: it has left."""
        for timer in (*self._asked.values(), *self._leaving.values()):
            timer.cancel()

    def close(self) -> None:
        """Ask it to leave."""
        self.connection.close()

    def leave(self, left: Callable[[], None]) -> None:
        """Call ``left`` once nothing copies for it any more: its end is closed, so at once."""
        left()

    def halt(self) -> None:
        """Prepare for the end of the agent: nothing of the agent copies for it."""

    def _hand_out(self, segment: Segment) -> None:
        self.connection.holds_memory = True
        self.connection.send(
            Map(segments=[SegmentInfo(segment=segment.id, bytes=segment.bytes)]),
            fds=[segment.fd],
        )

    def _ask_back(self, segment: Segment) -> None:
        self.connection.send(Unmap(segments=[segment.id]))

    def _expired(self) -> None:
        self._late(self, sorted((*self._asked, *self._leaving)))
