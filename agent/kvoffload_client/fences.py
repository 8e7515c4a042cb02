"""What a step of an engine has to wait for; sans I/O, and decided without the agent.

Source of the rules: ``scheduler.md`` section 5, "Fences", "Preemption" and "Reset".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvoffload_client.inflight import BlocksInFlight
from kvoffload_client.jobs import Job, JobKey
from kvoffload_client.outcomes import StepInput
from kvoffload_client.requests import RequestState
from kvoffload_client.steps import Rewritten, blocks_of


class Fences:
    """Jobs in flight against the blocks that the step being built writes.

    Args:
        tokens_per_block: Per KV cache group.
    """

    def __init__(self, tokens_per_block: Sequence[int]) -> None:
        self._in_flight = BlocksInFlight()
        self._rewritten = Rewritten(tokens_per_block)
        self._everything = False

    def __contains__(self, key: JobKey) -> bool:
        return key in self._in_flight

    def enter(self, job: Job) -> None:
        """Enter a job that was planned."""
        self._in_flight.add(job, blocks_of(job.plan))

    def ended(self, keys: Iterable[JobKey]) -> None:
        """Forget jobs that every rank has ended."""
        for key in keys:
            self._in_flight.remove(key)

    def allocated(
        self, request: RequestState, blocks: Sequence[Sequence[int]], *, loads: bool
    ) -> None:
        """Enter what allocation gave to a request; see ``SchedulerSession.alloc``."""
        self._rewritten.add_alloc(request, blocks, loads=loads)

    def reset(self) -> None:
        """The prefix cache was reset: the next step waits for every job."""
        self._everything = True

    def begin(self, step: StepInput) -> set[JobKey]:
        """Return the jobs, of earlier steps, that must end before this step writes."""
        self._rewritten.add_step(step)
        if self._everything:
            self._everything = False
            return self._in_flight.all()
        flush = self._in_flight.touching(self._rewritten.blocks())
        for handle in step.preempted:
            flush |= self._in_flight.of_request(handle)
        return flush

    def must_end_now(self, job: Job) -> bool:
        """Whether another request writes a block of this new store in this same step.

        It is a last store of a request that has ended, whose blocks are in use again.
        """
        return self._rewritten.by_others(job.handle, blocks_of(job.plan))

    def end(self) -> None:
        """The step is built: what is entered from now on belongs to the next one."""
        self._rewritten.clear()
