"""What the connector's two roles tell each other through the engine, once a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvoffload_client.jobs import Job, JobKey


@dataclass(frozen=True, kw_only=True)
class StepMetadata(KVConnectorMetadata):  # type: ignore[misc] # vLLM is not typed here
    """Scheduler to every worker: the jobs of one step (``StepOutcome``), by request id.

    Attributes:
        flush: jobs to finish before any block of this step is written.
        loads: jobs to submit now, each with its request.
        failed_loads: requests whose load will never come, each with the blocks it was to fill.
        stores: jobs to submit at the beginning of the next step.
    """

    flush: frozenset[JobKey] = frozenset()
    loads: tuple[tuple[str, Job], ...] = ()
    failed_loads: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stores: tuple[Job, ...] = ()


@dataclass(frozen=True, kw_only=True)
class WorkerReport(KVConnectorWorkerMetadata):  # type: ignore[misc] # vLLM is not typed here
    """Workers to scheduler: how many ranks ended each job, and which of them failed somewhere."""

    ended: Mapping[JobKey, int] = field(default_factory=dict)
    failed: frozenset[JobKey] = frozenset()

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """Add another rank's report of the same step."""
        ended = dict(self.ended)
        for key, ranks in other.ended.items():
            ended[key] = ended.get(key, 0) + ranks
        return WorkerReport(ended=ended, failed=self.failed | other.failed)
