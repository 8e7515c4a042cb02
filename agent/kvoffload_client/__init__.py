"""What an inference engine imports: sessions with the node agent, copies, the vLLM connector.

An engine has one ``SchedulerSession`` in the process that schedules and one ``WorkerSession`` per
rank where its KV tensors are; the same ``ClientSettings.session_key`` ties them together.

In each scheduling step:

1. scheduler: ``new_request`` for arrivals, ``match`` and, when blocks are allocated, ``alloc`` for
   waiting requests, then ``step``, whose ``StepOutcome`` goes to every worker;
2. workers: submit stores of the step before, ``wait`` for ``flush``, ``submit_load`` for ``loads``,
   compute, keep ``stores`` for after the forward;
3. workers: ``poll``; when every rank has reported a job, the scheduler calls ``complete`` with its
   key. A load that failed on any rank, or is in ``failed_loads``, is recomputed.

An engine whose KV tensors are in shared memory can have the agent copy: ``EngineLayout.copies`` is
``agent`` then, and its workers are ``DelegatedWorkerSession``.

Nothing here raises or hangs because of the agent: without it nothing is loaded or stored.
"""

from kvoffload_client.delegated import DelegatedWorkerSession
from kvoffload_client.jobs import Job, JobKey, JobResult
from kvoffload_client.layout import (
    EngineLayout,
    KVLayer,
    KVMemory,
    SharedKVLayer,
    SharedKVMemory,
    fingerprint_of,
)
from kvoffload_client.outcomes import MatchOutcome, ScheduledRequest, StepInput, StepOutcome
from kvoffload_client.scheduler import SchedulerSession
from kvoffload_client.settings import ClientSettings
from kvoffload_client.worker import WorkerSession

__all__ = [
    "ClientSettings",
    "DelegatedWorkerSession",
    "EngineLayout",
    "Job",
    "JobKey",
    "JobResult",
    "KVLayer",
    "KVMemory",
    "MatchOutcome",
    "ScheduledRequest",
    "SchedulerSession",
    "SharedKVLayer",
    "SharedKVMemory",
    "StepInput",
    "StepOutcome",
    "WorkerSession",
    "fingerprint_of",
]
