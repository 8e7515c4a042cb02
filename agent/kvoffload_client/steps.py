"""A scheduling step on the wire, and the blocks that it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kvoffload_api.wire.messages import Plan, ScheduledBlocks, Step
from kvoffload_client.outcomes import StepInput
from kvoffload_client.requests import RequestState


def blocks_of(plan: Plan) -> list[int]:
    """Return the KV blocks of a plan."""
    blocks: list[int] = np.frombuffer(plan.blocks, dtype="<i8").tolist()
    return blocks


def step_message(
    step: StepInput, *, seq: int, known: Callable[[int], bool], tabled: Callable[[int], bool]
) -> Step:
    """Return the message of a step, less the requests that the agent does not know.

    After a reconnect the agent knows neither requests that were running nor their blocks; without
    their tables they cannot be stored. They come back when they are scheduled anew.
    """
    requests = [request for request in step.requests if tabled(request.handle)]
    return Step(
        seq=seq,
        handles=_column(request.handle for request in requests),
        computed=_column(request.computed for request in requests),
        scheduled=_column(request.scheduled for request in requests),
        blocks=[
            ScheduledBlocks(
                handle=request.handle, blocks=[_column(table) for table in request.blocks]
            )
            for request in requests
            if request.new or request.resumed or any(len(table) for table in request.blocks)
        ],
        new=[request.handle for request in requests if request.new],
        resumed=[request.handle for request in requests if request.resumed],
        finished=[handle for handle in step.finished if known(handle)],
        preempted=[handle for handle in step.preempted if tabled(handle)],
        handoffs=[handoff for handoff in step.handoffs if tabled(handoff.handle)],
        copies=list(step.copies),
        shared_prefix_boundaries={
            handle: boundary
            for handle, boundary in step.shared_prefix_boundaries.items()
            if tabled(handle)
        },
    )


def _column(values: Iterable[int]) -> bytes:
    return np.fromiter(values, dtype="<i8").tobytes()


class Rewritten:
    """Blocks that the step being built writes, and for which request (0: a block copy)."""

    def __init__(self, tokens_per_block: Sequence[int]) -> None:
        self._tokens_per_block = tokens_per_block
        self._writers: dict[int, int] = {}

    def add(self, handle: int, blocks: Iterable[int]) -> None:
        """Enter blocks that will be written for a request."""
        self._writers.update(dict.fromkeys(blocks, handle))

    def add_alloc(
        self, request: RequestState, blocks: Sequence[Sequence[int]], *, loads: bool
    ) -> None:
        """Enter what allocation gave to a request: blocks without a hash (a positive id).

        What is loaded into may have a hash already; it begins at the computed tokens of the lookup.
        """
        for tokens, table in zip(self._tokens_per_block, blocks, strict=False):
            self.add(request.handle, (block for block in table if block > 0))
            if loads:
                loaded = table[request.local // tokens :]
                self.add(request.handle, (abs(block) for block in loaded if block))

    def add_step(self, step: StepInput) -> None:
        """Enter the blocks that a step newly hands to requests, and destinations of its copies.

        Of a whole table the blocks below the computed tokens are only read.
        """
        for request in step.requests:
            whole = request.new or request.resumed
            for tokens, table in zip(self._tokens_per_block, request.blocks, strict=False):
                first = request.computed // tokens if whole else 0
                self.add(request.handle, (block for block in table[first:] if block > 0))
        self.add(0, (destination for _, destination in step.copies))

    def blocks(self) -> Iterable[int]:
        """Return every block entered."""
        return self._writers

    def by_others(self, handle: int, blocks: Iterable[int]) -> bool:
        """Whether any of these blocks is written for another request than this one."""
        return any(self._writers.get(block, handle) != handle for block in blocks)

    def clear(self) -> None:
        """Begin the next step."""
        self._writers.clear()
