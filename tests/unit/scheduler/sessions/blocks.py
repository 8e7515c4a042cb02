"""KV blocks of an engine: who has them, what they hold, and which were handed out anew."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.scheduler.sessions.agent import Content

from kvoffload_agent.scheduler.types import GroupConfig

BLOCKS = 64
Tables = list[list[int]]


class Blocks:
    """Tables are per group, 0 = null.

    Whoever needs blocks gets those that became free last, so that fences matter. ``fresh``: blocks
    handed out since the last step, and to which request.
    """

    def __init__(self, groups: Sequence[GroupConfig]) -> None:
        self._groups = groups
        self._contents: dict[int, tuple[Content, int]] = {}
        self.free = list(range(1, BLOCKS))
        self.fresh: dict[int, int] = {}

    def allocate(self, handle: int, tables: Tables, end: int) -> Tables | None:
        """Return the blocks that are missing up to a token; None: so many are not left."""
        have = tables or [[] for _ in self._groups]
        wanted = [
            max(0, -(-end // group.tokens_per_block) - len(table))
            for group, table in zip(self._groups, have, strict=True)
        ]
        if sum(wanted) > len(self.free):
            return None
        blocks = [[self.free.pop() for _ in range(count)] for count in wanted]
        self.fresh.update((block, handle) for table in blocks for block in table)
        return blocks

    def slide(self, tables: Tables, computed: int) -> None:
        """Free what lies before the window of the computed tokens."""
        for group, table in zip(self._groups, tables, strict=True):
            if group.window:
                kept = computed - group.window + 1 - group.extra_retained_tokens
                for at in range(min(len(table), max(0, kept) // group.tokens_per_block)):
                    if table[at]:
                        self.free.append(table[at])
                        self.fresh.pop(table[at], None)
                    table[at] = 0

    def release(self, tables: Tables) -> None:
        self.free += [block for table in tables for block in table if block]

    def compute(self, prompt: int, tables: Tables, first: int, end: int) -> None:
        """Tokens ``[first, end)`` of a prompt were computed."""
        for number, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            size = group.tokens_per_block
            for at in range(first // size, -(-end // size)):
                if table[at]:
                    filled = min(end, (at + 1) * size)
                    self._contents[table[at]] = (prompt, number, at), filled

    def fill(self, block: int, content: Content) -> None:
        """A whole block was loaded."""
        self._contents[block] = content, self._end(content)

    def holds(self, block: int, content: Content) -> bool:
        """Whether a block holds this, and the whole of it."""
        return self._contents.get(block) == (content, self._end(content))

    def _end(self, content: Content) -> int:
        _, group, at = content
        return (at + 1) * self._groups[group].tokens_per_block
