"""The connector with one fault on order, at a moment that nothing outside the engine can meet.

The file that ``KVOFFLOAD_FAULT`` names orders it, once: whoever removes the file carries it out.

- ``unmapped``: the next load names a segment that no agent ever handed out, so that it fails in
  the worker as a load does whose bytes cannot be reached.
- ``kill-at-match PID``, ``kill-at-alloc PID``, ``kill-at-load PID``: SIGKILL to that process (the
  agent) before the next hit is asked for, after its blocks were allocated, or after its copy was
  submitted.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvoffload_client.jobs import Job
from kvoffload_client.vllm.connector import KVOffloadConnector
from kvoffload_client.vllm.metadata import StepMetadata

FAULT_ENV = "KVOFFLOAD_FAULT"
UNKNOWN_SEGMENT = 1 << 60


class FaultyKVOffloadConnector(KVOffloadConnector):
    """``KVOffloadConnector`` with the faults above."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        kill_if_ordered("kill-at-match")
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            kill_if_ordered("kill-at-alloc")
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, StepMetadata)
        if step.loads and take_order("unmapped") is not None:
            loads = tuple((request_id, unmapped(job)) for request_id, job in step.loads)
            self.bind_connector_metadata(dataclasses.replace(step, loads=loads))
        super().start_load_kv(forward_context, **kwargs)
        if step.loads:
            kill_if_ordered("kill-at-load")


def unmapped(job: Job) -> Job:
    """Return the job with every entry in a segment that does not exist."""
    segments = np.full(len(job.plan.segments) // 8, UNKNOWN_SEGMENT, dtype="<u8").tobytes()
    return msgspec.structs.replace(job, plan=msgspec.structs.replace(job.plan, segments=segments))


def take_order(fault: str) -> str | None:
    """Return the rest of the order if it is of this fault; it is carried out by one process."""
    path = Path(os.environ[FAULT_ENV])
    try:
        name, _, rest = path.read_text().partition(" ")
        if name != fault:
            return None
        path.unlink()
    except FileNotFoundError:
        return None
    return rest


def kill_if_ordered(fault: str) -> None:
    """SIGKILL the process that an order names."""
    if (rest := take_order(fault)) is not None:
        os.kill(int(rest), signal.SIGKILL)
