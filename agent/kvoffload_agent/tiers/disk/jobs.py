"""What a partition's disk tier is given, and its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from kvoffload_agent.tiers.disk.rows import Cancel, SlotRows
from kvoffload_agent.tiers.secondary import Key
from kvoffload_agent.tiers.slots import Slots


class Account(NamedTuple):
    """Whose capacity is used; ``capacity`` None or 0: this partition uses no disk."""

    bucket: str
    capacity: int | None


class Memory(Protocol):
    """Where a partition's slots are."""

    def rows(self, slots: Slots) -> SlotRows:
        """Return the rows of slots, with descriptors of their own."""


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A store or load of several packs.

    ``pending``: packs nobody reported yet; ``working``: packs a thread may still touch rows for.
    """

    number: int
    keys: Sequence[Key]
    load: bool
    rows: SlotRows
    cancel: Cancel = field(default_factory=Cancel)
    pending: int = 0
    working: int = 0
    arrived: set[Key] = field(default_factory=set)
    failed: bool = False
    reported: bool = False
