"""The arena: all segments of this agent, their accounting, and growth under the guard's eyes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvoffload_agent.memory.guard import Refuse, Shrink, Verdict, decide
from kvoffload_agent.memory.segment import Segment
from kvoffload_agent.memory.snapshot import MIB, Snapshot

# ``datapath.md`` section 3: 32 MiB take about 20 ms, and nobody can take much meanwhile.
POPULATE_STEP_BYTES: Final = 32 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Segments made together, rank 0 first, of ``bytes`` each, with consecutive ids.

    ``limited_by`` says what made it smaller than asked for, ``""`` if nothing did.
    """

    segments: tuple[Segment, ...]
    limited_by: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of one segment."""
        return self.segments[0].bytes

    @property
    def total(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Bytes: ``mapped`` is the length of all segments, ``populated`` what is resident of it."""

    mapped: int
    populated: int


class Arena:
    """Owns every segment. One growth at a time; all methods belong to the event loop's thread.

    Segment ids count up from 0 and are never used twice in one life of the agent.
    """

    def __init__(self, *, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._segments: dict[int, Segment] = {}
        self._next = 0
        self._growing = asyncio.Lock()
        self.reserved = 0
        """Bytes of the node that policy keeps for others (nodeBudget.reservedMemory)."""

    @property
    def usage(self) -> Usage:
        """Return the bytes taken now, a segment being populated included."""
        return Usage(
            mapped=sum(segment.bytes for segment in self._segments.values()),
            populated=sum(segment.populated for segment in self._segments.values()),
        )

    def ask(self, wanted: int, budget: int | None) -> Verdict:
        """Ask the guard about ``wanted`` bytes more, from a fresh snapshot."""
        return decide(self._snapshot(), wanted, budget, reserved=self.reserved)

    async def grow(
        self, *, ranks: int, row_bytes: int, segment_bytes: int, budget: int | None
    ) -> Row | Refuse:
        """Make one segment for each rank: populated, sealed, ready to be handed out.

        ``segment_bytes`` is what one should hold at most, ``budget`` what all may take together
        (None: no bound but the guard's). A segment holds whole rows; where less than asked for is
        free it gets smaller, and below one row the answer is Refuse.
        """
        async with self._growing:
            verdict = self.ask(segment_bytes * ranks, budget)
            if isinstance(verdict, Refuse):
                return verdict
            limited_by = verdict.limited_by if isinstance(verdict, Shrink) else ""
            rows = verdict.bytes // ranks // row_bytes
            if rows < 1:
                return Refuse(
                    reason=(
                        f"one row needs {row_bytes * ranks} bytes and {verdict.bytes} are free"
                        f" under {verdict.limited_by}"
                    ),
                    headroom=verdict.bytes,
                    limited_by=verdict.limited_by,
                )
            return await self._make(
                ranks=ranks, rows=rows, row_bytes=row_bytes, limited_by=limited_by
            )

    def close(self, row: Row) -> None:
        """Give a row's segments back; nobody may have them mapped any more."""
        for segment in row.segments:
            self._segments.pop(segment.id, None)
            segment.close()

    def close_all(self) -> None:
        """Give everything back, at the end of the agent."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()

    async def _make(
        self, *, ranks: int, rows: int, row_bytes: int, limited_by: str
    ) -> Row | Refuse:
        segments: list[Segment] = []
        try:
            for _ in range(ranks):
                segment = Segment(segment=self._next, size=rows * row_bytes)
                self._next += 1
                segments.append(segment)
                self._segments[segment.id] = segment
            refusal = await self._populate(segments)
            done = min(segment.populated for segment in segments) // row_bytes * row_bytes
            if done == 0 and refusal is not None:
                for segment in segments:
                    self._segments.pop(segment.id, None)
                    segment.close()
                return refusal
            for segment in segments:
                if segment.bytes != done:
                    segment.truncate(done)
                segment.seal()
        except BaseException:
            for segment in segments:
                self._segments.pop(segment.id, None)
                segment.close()
            raise
        return Row(
            segments=tuple(segments), limited_by=refusal.limited_by if refusal else limited_by
        )

    async def _populate(self, segments: list[Segment]) -> Refuse | None:
        """Populate all alike, step by step, until done or the guard refuses a step."""
        while segments[-1].populated < segments[-1].bytes:
            for segment in segments:
                refusal = await _in_thread(self._step, segment)
                if refusal is not None:
                    return refusal
        return None

    def _step(self, segment: Segment) -> Refuse | None:
        step = min(POPULATE_STEP_BYTES, segment.bytes - segment.populated)
        verdict = self.ask(step, None)
        if isinstance(verdict, Refuse):
            return verdict
        # Whole pages, or the rest of the segment.
        allowed = verdict.bytes if verdict.bytes == step else verdict.bytes // 4096 * 4096
        if allowed == 0:
            return Refuse(
                reason=f"{verdict.bytes} bytes are free under {verdict.limited_by}",
                headroom=verdict.bytes,
                limited_by=verdict.limited_by,
            )
        try:
            segment.populate(allowed)
        except OSError as error:
            return Refuse(
                reason=f"the kernel refused {allowed} bytes: {error}",
                headroom=0,
                limited_by="kernel",
            )
        if isinstance(verdict, Shrink):
            return Refuse(
                reason=f"{allowed} of {step} bytes were free under {verdict.limited_by}",
                headroom=verdict.bytes,
                limited_by=verdict.limited_by,
            )
        return None


async def _in_thread(
    function: Callable[[Segment], Refuse | None], segment: Segment
) -> Refuse | None:
    """Run a step in a thread and outlast a cancellation: a segment in use must not be closed."""
    step = asyncio.ensure_future(asyncio.to_thread(function, segment))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.wait([step], timeout=5)
        raise
