"""Values that cross the scheduler's border: configuration, caps, questions and answers.

The scheduler does no I/O and knows nothing of segments: a plan names (block id, slot, index of the
block inside its chunk); whoever owns the memory maps a slot to bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.int64]


class GroupKind(StrEnum):
    """Attention kinds; all but ``FULL`` are windowed (``scheduler.md`` section 1)."""

    FULL = "full"
    SLIDING_WINDOW = "sliding_window"
    CHUNKED_LOCAL = "chunked_local"
    MAMBA = "mamba"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One KV cache group, in tokens. ``mamba_align``: state saved only at block boundaries."""

    kind: GroupKind
    tokens_per_block: int
    window: int = 0
    eagle: bool = False
    mamba_align: bool = False
    extra_retained_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Geometry of one engine, validated by its scheduler (``scheduler.md`` section 2).

    ``sync_load_budget_bytes``: what one worker may load before the forward of one step; 0, and
    engines with several groups: every load is asynchronous. ``block_bytes``: of one block of the
    only group on one worker, what is charged to that budget.
    """

    groups: Sequence[GroupConfig]
    tokens_per_hash: int
    blocks_per_chunk: int = 1
    num_workers: int = 1
    enable_prefix_caching: bool = True
    retention_interval: int | None = None
    sync_load_budget_bytes: int = 0
    block_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierMatcher:
    """A tier filter entry; None matches anything. Values are lower case: ``cpu``/``storage``."""

    medium: str | None = None
    locality: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCaps:
    """What one request may do: policy and request already resolved (``tighten``).

    ``load_tiers``: secondary tiers that may serve; None = all. ``None`` caps = no cap.
    ``load_timeout_seconds``: how long a request waits for chunks that are not ready, None = for
    ever. ``sources``: field name (``load.maxTokens``, ``store.maxTokens``) → who set it.
    """

    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    min_load_tokens: int = 0
    prompt_only: bool = True
    load_tiers: tuple[TierMatcher, ...] | None = None
    store_tiers: tuple[TierMatcher, ...] | None = None
    load_timeout_seconds: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """``tokens`` None = ask later. ``limited_by``: the field that shortened the hit, or ``""``.

    ``load_async``: the request waits for its load, steps pass meanwhile; else it is loaded before
    the forward of the step that allocates for it.
    """

    tokens: int | None
    load_async: bool
    limited_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """One job: entry i copies ``blocks[i]`` to or from sub-block ``index[i]`` of ``slots[i]``.

    Entries are grouped: ``group_sizes[g]`` entries of group g. ``first``: block index of each
    group's first entry (recorded cases). ``keys``: (group, hash) of the chunks, in order.
    """

    job: int
    handle: int
    blocks: Blocks
    slots: Blocks
    index: Blocks
    group_sizes: tuple[int, ...]
    first: tuple[int, ...]
    keys: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """``plan`` None = nothing to load. ``sources``: tokens per cache tier."""

    plan: CopyPlan | None
    sources: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handoff:
    """Mamba copy-on-write hand-off: ``block`` of ``group`` holds the state at ``boundary``."""

    group: int
    block: int
    boundary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """One request of a step. ``blocks``: per group; whole table if ``new`` or ``resumed``."""

    handle: int
    computed: int
    scheduled: int
    blocks: Sequence[Blocks] | None = None
    new: bool = False
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One scheduling step; ``requests`` in the order of num_scheduled_tokens."""

    requests: Sequence[ScheduledRequest]
    finished: Sequence[int] = ()
    preempted: Sequence[int] = ()
    handoffs: Mapping[int, Sequence[Handoff]] = field(default_factory=dict)
    copies: Sequence[tuple[int, int]] = ()
    shared_prefix_boundaries: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """``loads``: job ids started in this step. ``flush``: jobs to finish before it writes.

    ``evicted``: chunks that left the partition for others since its last step.
    """

    loads: tuple[int, ...]
    stores: tuple[CopyPlan, ...]
    flush: tuple[int, ...]
    busy: bool
    evicted: int = 0
