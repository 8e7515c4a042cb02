"""Which blocks of a windowed group any later hit can need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kvoffload_agent.scheduler.geometry import Geometry, Group, ceil_div
from kvoffload_agent.scheduler.types import GroupKind
from kvoffload_agent.tiers.slots import Mask


class Reach:
    """The rule for one group: a mask over its blocks, or that all are kept.

    A hit ends at a multiple of the alignment, or of the retention interval where one is set; it
    needs the ``need`` blocks before its end, and an eagle group one more.
    """

    def __init__(self, geometry: Geometry, group: Group) -> None:
        self._group = group
        self._alignment = geometry.alignment
        self._retention = geometry.retention
        self._shift = 1 if group.eagle else 0
        self._need = 1
        if group.kind is GroupKind.SLIDING_WINDOW:
            kept = group.window_tokens + group.extra - 1
            self._need = ceil_div(kept, group.tokens_per_block) + self._shift
        self._segment = (self._retention or geometry.alignment) // group.tokens_per_block
        self.keeps_all = self._keeps_all()

    def _keeps_all(self) -> bool:
        group = self._group
        if not self._alignment:
            return True
        if group.kind is GroupKind.MAMBA:
            if self._retention is None:
                return True
        elif group.kind is not GroupKind.SLIDING_WINDOW or self._alignment % group.tokens_per_block:
            return True
        return self._retention != 0 and self._need >= self._segment

    @property
    def has_final_segment(self) -> bool:
        """Whether the blocks before the end of the prompt, or of the request, are kept as well."""
        return not self.keeps_all and self._retention is None and not self._shift

    def final_segment(self, horizon: int) -> int:
        """Return the first block of the partial segment that ends at block ``horizon``."""
        return horizon - horizon % self._segment

    def mask(
        self, first: int, last: int, *, horizon: int | None, boundaries: Iterable[int]
    ) -> Mask:
        """Return which of blocks ``[first, last)`` are kept.

        Args:
            first: Number of a block.
            last: Number of a block.
            horizon: Block at which the last, partial segment ends; None = there is none.
            boundaries: Tokens up to which requests are known to be shared (with retention only).
        """
        blocks = np.arange(first, last)
        if self._retention == 0:
            kept = np.zeros(len(blocks), dtype=np.bool_)
        else:
            within = (blocks - self._shift) % self._segment
            kept = (blocks >= self._shift) & (within >= self._segment - self._need)
        if self.has_final_segment and horizon is not None:
            low = max(horizon - self._need, self.final_segment(horizon))
            kept |= (blocks >= low) & (blocks < horizon)
        if self._retention is not None:
            for boundary in boundaries:
                aligned = boundary - boundary % self._alignment
                end = aligned // self._group.tokens_per_block + self._shift
                kept |= (blocks >= end - self._need) & (blocks < end)
        return kept
