"""A step as the client is given it, and as the agent is told of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from tests.unit.scheduler.sessions.blocks import Tables
from tests.unit.scheduler.sessions.copies import Live

from kvoffload_agent.scheduler import types
from kvoffload_client import outcomes

# (request, tokens, added blocks; None = its whole table, for a new one).
Scheduled = tuple[Live, int, Tables | None]


def of_engine(
    scheduled: Sequence[Scheduled], finished: Sequence[int], preempted: Sequence[int]
) -> outcomes.StepInput:
    return outcomes.StepInput(
        requests=[
            outcomes.ScheduledRequest(
                handle=live.handle,
                computed=live.computed,
                scheduled=count,
                blocks=live.blocks if added is None else added,
                new=added is None,
            )
            for live, count, added in scheduled
        ],
        finished=finished,
        preempted=preempted,
    )


def as_told(
    step: outcomes.StepInput, *, known: Collection[int], tabled: Collection[int]
) -> types.StepInput:
    """Return a step less the requests that this life of the agent does not know.

    ``tabled``: those whose block tables it has.
    """
    return types.StepInput(
        requests=[
            types.ScheduledRequest(
                handle=item.handle,
                computed=item.computed,
                scheduled=item.scheduled,
                blocks=[np.array(table, dtype=np.int64) for table in item.blocks],
                new=item.new,
            )
            for item in step.requests
            if item.handle in tabled
        ],
        finished=[handle for handle in step.finished if handle in known],
        preempted=[handle for handle in step.preempted if handle in tabled],
    )
