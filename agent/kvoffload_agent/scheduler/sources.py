"""Splits the tokens of a hit by the tier that each came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvoffload_agent.scheduler.geometry import Group
from kvoffload_agent.scheduler.types import GroupKind
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.secondary import SecondaryTier

# From the innermost to the outermost; where ranges overlap the outermost counts.
LABELS: Final = ("host", "disk", "external_unspecified")
_HOST: Final = 0
_UNKNOWN: Final = len(LABELS) - 1


def split(
    pool: PartitionPool,
    request: PoolRequest,
    groups: Sequence[Group],
    runs: Sequence[KeyRun],
    starts: Sequence[int],
    *,
    low: int,
    high: int,
) -> dict[str, int]:
    """Return tokens of ``[low, high)`` by label, without zeros.

    A recurrent state stands for its whole prefix, an attention key for its own tokens as far as
    they are loaded: ``starts`` has the first token of each group. What no key covers is history
    that no layer needs: nobody says where it came from.
    """
    if high <= low:
        return {}
    levels = {number: _level(tier) for number, tier in enumerate(pool.below.tiers)}
    edges: list[tuple[int, int, int]] = []
    for group, run, first in zip(groups, runs, starts, strict=True):
        if not run.hashes or run.positions is None:
            continue
        recurrent = group.kind is GroupKind.MAMBA
        if not request.origins:
            edges.append((low if recurrent else first, int(run.positions[-1]), _HOST))
            continue
        for key, end in zip(run.hashes, run.positions.tolist(), strict=True):
            origin = request.origins.get((group.number, key))
            level = _HOST if origin is None else levels[origin]
            start = low if recurrent else max(_start(group, end), first)
            edges.append((start, end, level))
    return _count(edges, low, high)


def _start(group: Group, end: int) -> int:
    return (end - 1) // group.chunk * group.chunk


def _count(edges: list[tuple[int, int, int]], low: int, high: int) -> dict[str, int]:
    level = np.full(high - low, -1, dtype=np.int8)
    for start, end, what in sorted(edges, key=lambda edge: edge[2]):
        level[max(start - low, 0) : max(end - low, 0)] = what
    level[level < 0] = _UNKNOWN
    counts = np.bincount(level, minlength=len(LABELS)).tolist()
    return {label: count for label, count in zip(LABELS, counts, strict=True) if count}


def _level(tier: SecondaryTier) -> int:
    if tier.medium is None:
        return _UNKNOWN
    return LABELS.index("disk") if tier.medium == "storage" else _HOST
