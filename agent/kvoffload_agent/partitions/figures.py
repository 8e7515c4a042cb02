"""What all partitions together have of host memory, for status and metrics."""

from __future__ import annotations

from dataclasses import dataclass

from kvoffload_agent.memory.guard import Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Bytes of host memory: ``requested`` by policies, ``mapped`` and ``populated`` by segments.

    ``refusal``: why a partition that wants more has none, None if none is refused.
    """

    requested: int
    mapped: int
    populated: int
    refusal: Refuse | None
