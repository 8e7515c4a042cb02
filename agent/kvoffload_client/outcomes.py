"""What an engine asks and is told in a scheduling step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvoffload_api.wire.messages import Handoff
from kvoffload_client.jobs import Job, JobKey


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOutcome:
    """How many tokens beyond the computed ones can be loaded; ``tokens`` None: ask later.

    ``limited_by`` and ``policy`` as in ``MatchReply``.
    """

    tokens: int | None
    load_async: bool = False
    limited_by: str = ""
    policy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """One request of a step: ``computed`` tokens before it, ``scheduled`` tokens in it.

    ``blocks``: per group; the whole table if ``new`` or ``resumed``, else the added ones.
    """

    handle: int
    computed: int
    scheduled: int
    blocks: Sequence[Sequence[int]] = ()
    new: bool = False
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One scheduling step; ``requests`` in the order of the engine's ``num_scheduled_tokens``.

    ``finished`` and ``preempted``: handles since the last step. ``copies``: (source, destination)
    blocks that the engine copies in this step.
    """

    requests: Sequence[ScheduledRequest] = ()
    finished: Sequence[int] = ()
    preempted: Sequence[int] = ()
    handoffs: Sequence[Handoff] = ()
    copies: Sequence[tuple[int, int]] = ()
    shared_prefix_boundaries: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What workers do, in this order.

    ``flush``: finish (or, if not begun, run and finish) these jobs before any block of this step is
    written, loads included. ``loads``: submit now. ``stores``: their blocks are complete after this
    step's forward, submit them then (vLLM: at the beginning of the next step).
    ``failed_loads``: handles whose accepted load will never come: recompute.
    Every ``alloc`` with external tokens ends in exactly one of ``loads`` and ``failed_loads``, of
    this step or a later one. ``busy``: keep stepping although no request is scheduled.
    """

    loads: tuple[Job, ...] = ()
    failed_loads: tuple[int, ...] = ()
    stores: tuple[Job, ...] = ()
    flush: frozenset[JobKey] = frozenset()
    busy: bool = False
