"""The connector's role in a worker: executes the jobs of each step on the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvoffload_client.jobs import Job, JobKey
from kvoffload_client.settings import ClientSettings
from kvoffload_client.vllm.config import ConnectorConfigError
from kvoffload_client.vllm.gpu import device_of
from kvoffload_client.vllm.identity import EngineShape
from kvoffload_client.vllm.metadata import StepMetadata, WorkerReport
from kvoffload_client.vllm.regions import kv_memory
from kvoffload_client.worker import WorkerSession

# A gigabyte is copied in 0.2 s; a copy that holds a step up for longer than this is stopped and
# its chunks are lost, which costs a recompute some day.
FLUSH_DEADLINE_SECONDS = 2.0


class WorkerRole:
    """Translates the engine's worker hooks into a ``WorkerSession``."""

    def __init__(
        self, kv_cache_config: Any, *, settings: ClientSettings, shape: EngineShape, rank: int
    ) -> None:
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._shape = shape
        self._rank = rank
        self._session: WorkerSession | None = None
        self._tensors: Mapping[str, Any] = {}
        self._stores: list[Job] = []
        self._loading: dict[JobKey, tuple[str, Job]] = {}
        self._finished: set[str] = set()
        self._failed: dict[str, tuple[int, ...]] = {}
        self._report = WorkerReport()

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Take the engine's KV tensors and join the session.

        Raises:
            ConnectorConfigError: they are laid out in a way that whole-block copies do not fit, or
                are where nothing here copies from.
        """
        memory = kv_memory(self._kv_cache_config, kv_caches)
        for layers, group in zip(memory, self._shape.groups, strict=True):
            found = sum(layer.block_bytes for layer in layers)
            if found != group.block_bytes:
                raise ConnectorConfigError(
                    f"a block has {found} bytes in this worker and {group.block_bytes} in the "
                    "scheduler; KVOffloadConnector does not support this model"
                )
        self._tensors = dict(kv_caches)  # their memory must outlive the session's copies
        self._session = WorkerSession(
            settings=self._settings,
            rank=self._rank,
            memory=memory,
            device=device_of(kv_caches),
        )
        self._session.start()

    def before_forward(self, step: StepMetadata) -> None:
        """Submit the stores of the step before, then finish what this step would overwrite."""
        if self._session is None:
            return
        urgent = [job for job in step.stores if job.key in step.flush]
        for job in (*self._stores, *urgent):
            self._session.submit_store(job)
        self._stores.clear()
        if step.flush:
            self._session.wait(step.flush, timeout_seconds=FLUSH_DEADLINE_SECONDS)

    def start_loads(self, step: StepMetadata) -> None:
        """Submit this step's loads; requests whose load never comes are told at once."""
        for request_id, job in step.loads:
            if self._session is None:
                self._loading_failed(request_id, _blocks(job))
                continue
            self._loading[job.key] = request_id, job
            self._session.submit_load(job)
        for request_id, blocks in step.failed_loads.items():
            self._loading_failed(request_id, blocks)

    def defer_stores(self, step: StepMetadata) -> None:
        """Keep this step's stores until its forward is over and its tokens are sampled."""
        self._stores += [job for job in step.stores if job.key not in step.flush]

    def poll(self) -> None:
        """Collect the jobs that ended, for the reports below."""
        if self._session is None:
            return
        ended, failed = dict(self._report.ended), set(self._report.failed)
        for result in self._session.poll():
            ended[result.key] = 1
            if not result.ok:
                failed.add(result.key)
            request_id, job = self._loading.pop(result.key, (None, None))
            if request_id is None or job is None:
                continue
            if result.ok:
                self._finished.add(request_id)
            else:
                self._loading_failed(request_id, _blocks(job))
        self._report = WorkerReport(ended=ended, failed=frozenset(failed))

    def take_finished(self) -> set[str]:
        """Return the requests whose load ended, well or not; each once."""
        finished, self._finished = self._finished, set()
        return finished

    def take_failed_blocks(self) -> set[int]:
        """Return the blocks that failed loads were to fill; each once."""
        failed, self._failed = self._failed, {}
        return {block for blocks in failed.values() for block in blocks}

    def take_failed_requests(self) -> set[str]:
        """Return the requests whose load failed; each once."""
        failed, self._failed = self._failed, {}
        return set(failed)

    def take_report(self) -> WorkerReport | None:
        """Return what the scheduler role is told, or None if nothing happened."""
        report, self._report = self._report, WorkerReport()
        return report if report.ended else None

    def close(self) -> None:
        """End the session; nothing touches the KV tensors any more."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._tensors = {}

    def _loading_failed(self, request_id: str, blocks: tuple[int, ...]) -> None:
        self._finished.add(request_id)
        self._failed[request_id] = blocks


def _blocks(job: Job) -> tuple[int, ...]:
    """Return the engine blocks of a job."""
    return tuple(int(block) for block in np.frombuffer(job.plan.blocks, dtype="<i8"))
