"""Copy jobs as they travel from the scheduler side of an engine to its workers."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvoffload_api.wire.messages import Plan

Kind = Literal["load", "store"]


class JobKey(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Names a job for ever: job numbers start again with each session and each agent."""

    boot_id: int
    session: int
    job: int


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A plan and the session that it belongs to; picklable and msgpack-able.

    ``deadline_seconds``: a load not finished so long after it was submitted fails (0: none).
    """

    key: JobKey
    kind: Kind
    plan: Plan
    deadline_seconds: float = 0.0

    @property
    def handle(self) -> int:
        """The request that the job belongs to."""
        return self.plan.handle


class JobResult(msgspec.Struct, frozen=True, array_like=True):
    """How a job ended on one rank. Of a failed load, no byte may be used; recompute."""

    key: JobKey
    kind: Kind
    handle: int
    ok: bool
    nbytes: int = 0
    reason: str = ""
