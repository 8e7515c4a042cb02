"""What the reference engine does on its "device": compute, load, store, verify."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
from tests.engine.content import DeviceMemory, partial_seed, seed_of
from tests.engine.requests import Request, blocks_for
from tests.engine.stats import Stats
from tests.engine.trace import TOKENS_PER_BLOCK

from kvoffload_client import (
    ClientSettings,
    DelegatedWorkerSession,
    Job,
    JobResult,
    StepOutcome,
    WorkerSession,
)

# Copies of a step take milliseconds; a flush that needs longer is stopped by the session.
_FLUSH_SECONDS = 5.0


class Runner:
    """One rank. Stores wait until the step after the one that computes their blocks."""

    def __init__(
        self,
        *,
        settings: ClientSettings,
        memory: DeviceMemory,
        stats: Stats,
        poison: bool,
        delegated: bool = False,
    ) -> None:
        self.memory = memory
        self.worker: WorkerSession | DelegatedWorkerSession
        if delegated:
            self.worker = DelegatedWorkerSession(
                settings=settings, rank=0, memory=[memory.shared_layers()]
            )
        else:
            self.worker = WorkerSession(settings=settings, rank=0, memory=[memory.layers()])
        self._stats = stats
        self._poison = poison
        self._deferred: list[Job] = []
        self._in_flight = 0

    @property
    def busy(self) -> bool:
        """Whether a job has been handed over that has not ended."""
        return bool(self._deferred or self._in_flight)

    def run(self, outcome: StepOutcome, work: Sequence[tuple[Request, int, int]]) -> None:
        """Run a step: earlier stores, flush, loads, then the forward."""
        stores, self._deferred = self._deferred, []
        for job in outcome.stores:
            (stores if job.key in outcome.flush else self._deferred).append(job)
        for job in stores:
            self._in_flight += 1
            self.worker.submit_store(job)
        self.worker.wait(outcome.flush, timeout_seconds=_FLUSH_SECONDS)
        for job in outcome.loads:
            if self._poison:
                self._poison = not self._flip(job)
            self._in_flight += 1
            self.worker.submit_load(job)
        for request, first, count in work:
            self._forward(request, first, first + count)

    def count(self, result: JobResult) -> None:
        """Enter how a job ended."""
        self._in_flight -= 1
        tokens = result.nbytes // self.memory.block_bytes * TOKENS_PER_BLOCK
        if result.kind == "load":
            self._stats.loaded_bytes += result.nbytes
        elif result.ok:
            self._stats.stored_tokens += tokens
            self._stats.stored_bytes += result.nbytes
        else:
            self._stats.failed_stores += 1

    def verify_loaded(self, request: Request, first: int, end: int) -> None:
        """Check the blocks of tokens that were loaded."""
        for index in range(first // TOKENS_PER_BLOCK, end // TOKENS_PER_BLOCK):
            self._check(request, index, seed_of(request.hashes[index]))

    def verify(self, request: Request) -> None:
        """Check every block of a request: loaded, shared and computed ones."""
        full = request.computed // TOKENS_PER_BLOCK
        self.verify_loaded(request, 0, full * TOKENS_PER_BLOCK)
        if blocks_for(request.computed) > full:
            self._check(request, full, partial_seed(request.trace.request_id, full))

    def _forward(self, request: Request, first: int, end: int) -> None:
        """Write the blocks that these tokens are in, as far as they are known by then."""
        full = end // TOKENS_PER_BLOCK
        for index in range(first // TOKENS_PER_BLOCK, full):
            self.memory.fill(request.table[index], seed_of(request.hashes[index]))
        began = first // TOKENS_PER_BLOCK == full and first % TOKENS_PER_BLOCK > 0
        if end % TOKENS_PER_BLOCK and not began:
            self.memory.fill(request.table[full], partial_seed(request.trace.request_id, full))

    def _check(self, request: Request, index: int, seed: int) -> None:
        block = request.table[index]
        self._stats.bytes_verified += self.memory.block_bytes
        if not self.memory.holds(block, seed):
            self._stats.mismatches += 1
            print(
                f"wrong bytes in block {block}, number {index} of {request.trace.request_id}",
                file=sys.stderr,
            )

    def _flip(self, job: Job) -> bool:
        """Flip a bit of the first stored byte that a load will read."""
        if not job.plan.segments or not isinstance(self.worker, WorkerSession):
            return False
        number = int(np.frombuffer(job.plan.segments, dtype="<u8")[0])
        offset = int(np.frombuffer(job.plan.offsets, dtype="<u8")[0])
        taken = self.worker._segments.take([number])
        if taken is None:
            return False
        byte = ctypes.c_ubyte.from_address(taken[0].address + offset)
        byte.value ^= 1
        self.worker._segments.release(taken)
        return True
