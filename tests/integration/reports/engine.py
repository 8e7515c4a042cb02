"""An engine that does what a test says, step by step, with the real agent and real memory.

The reference engine (tests/engine) has one group and decides by itself; here a test gives several
groups, tables with holes, and hand-offs, and looks at every byte.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.integration.engine.conftest import TOKENS, WAIT_SECONDS, Agent, eventually

from kvoffload_api.wire.messages import Group
from kvoffload_client import (
    ClientSettings,
    EngineLayout,
    Job,
    KVLayer,
    ScheduledRequest,
    SchedulerSession,
    StepInput,
    StepOutcome,
    WorkerSession,
)

NUM_BLOCKS = 64
LAYER_BYTES = 4096


def hashes(name: str, count: int) -> list[bytes]:
    """Block hashes of a prompt; those of different names never meet."""
    return [hashlib.sha256(f"{name}/{at}".encode()).digest() for at in range(count)]


class SteppedEngine:
    """One rank. ``memory[g]`` holds a row of bytes for each block of group g."""

    def __init__(
        self,
        agent: Agent,
        directory: Path,
        *,
        groups: Sequence[Group],
        tokens_per_hash: int,
        blocks_per_chunk: int = 1,
        retention: int | None = None,
    ) -> None:
        token = directory / "token"
        token.write_text(TOKENS["team-a"])
        settings = ClientSettings(
            session_key=secrets.token_hex(16),
            socket_path=str(agent.socket),
            token_path=str(token),
            # What is shown does not depend on the deadline; a loaded machine misses 5 ms.
            hook_deadline_seconds=2.0,
        )
        rng = np.random.default_rng(1)
        self.memory: list[NDArray[np.uint8]] = [
            rng.integers(0, 256, (NUM_BLOCKS, group.block_bytes), dtype=np.uint8)
            for group in groups
        ]
        self.session = SchedulerSession(
            settings=settings,
            layout=EngineLayout(
                identity={"model": "stepped"},
                groups=groups,
                world_size=1,
                tokens_per_hash=tokens_per_hash,
                blocks_per_chunk=blocks_per_chunk,
                block_hash_bytes=32,
                prefix_cache_retention_interval=retention,
            ),
        )
        self.worker = WorkerSession(
            settings=settings,
            rank=0,
            memory=[
                [
                    KVLayer(
                        memory=rows,
                        num_blocks=NUM_BLOCKS,
                        block_stride=rows.shape[1],
                        block_bytes=rows.shape[1],
                    )
                ]
                for rows in self.memory
            ],
        )
        self.session.start()
        self.worker.start()
        assert self.session.wait_ready(timeout_seconds=WAIT_SECONDS)
        assert self.worker.wait_ready(timeout_seconds=WAIT_SECONDS)
        eventually(
            lambda: self.worker.mapped_ranges() and agent.all_ready(),
            what="the agent's memory is in use",
        )

    def close(self) -> None:
        self.worker.close()
        self.session.close()

    def request(self, name: str, *, tokens: int, keys: Sequence[bytes]) -> int:
        return self.session.new_request(
            request_id=name, num_tokens=tokens, num_prompt_tokens=tokens, hashes=keys
        )

    def match(self, handle: int) -> int:
        """Ask until there is an answer."""
        found: list[int] = []

        def answered() -> bool:
            outcome = self.session.match(handle, computed=0)
            self.session.step(StepInput())
            found.extend([] if outcome.tokens is None else [outcome.tokens])
            return bool(found)

        eventually(answered, what="the lookup's answer")
        return found[0]

    def load(self, handle: int, *, tokens: int, tables: Sequence[Sequence[int]]) -> Job:
        """Load a promised prefix into new blocks; return the job once its bytes are there."""
        self.session.alloc(handle, external_tokens=tokens, blocks=tables)
        jobs: list[Job] = []

        def planned() -> bool:
            jobs.extend(self.session.step(StepInput()).loads)
            return bool(jobs)

        eventually(planned, what="the plan of the load")
        self.worker.submit_load(jobs[0])
        self._done(jobs)
        return jobs[0]

    def compute(
        self, handle: int, *, tokens: int, tables: Sequence[Sequence[int]], step: StepInput
    ) -> tuple[Job, ...]:
        """Compute a whole prompt and store what the agent takes; ``step`` has what is special."""
        outcome: StepOutcome = self.session.step(
            StepInput(
                requests=[
                    ScheduledRequest(
                        handle=handle, computed=0, scheduled=tokens, blocks=tables, new=True
                    )
                ],
                handoffs=step.handoffs,
            )
        )
        for job in outcome.stores:
            self.worker.submit_store(job)
        self._done(outcome.stores)
        return outcome.stores

    def end(self, handle: int, *, tokens: int) -> None:
        self.session.finish(handle, status="stopped", computed=tokens)
        assert self.session.step(StepInput(finished=[handle])).stores == ()

    def block(self, group: int, number: int) -> bytes:
        content: bytes = self.memory[group][number].tobytes()
        return content

    def _done(self, jobs: Sequence[Job]) -> None:
        keys = [job.key for job in jobs]
        assert self.worker.wait(keys, timeout_seconds=WAIT_SECONDS) == frozenset()
        assert all(result.ok for result in self.worker.poll())
        self.session.complete(keys)


def entries(job: Job, group: int) -> list[tuple[int, int, int, int]]:
    """Return the (block, segment, offset, bytes) of a plan's entries of one group."""
    plan = job.plan
    begin = sum(plan.group_sizes[:group])
    end = begin + plan.group_sizes[group]
    columns = (
        np.frombuffer(plan.blocks, dtype="<i8")[begin:end].tolist(),
        np.frombuffer(plan.segments, dtype="<u8")[begin:end].tolist(),
        np.frombuffer(plan.offsets, dtype="<u8")[begin:end].tolist(),
    )
    return [(*entry, plan.lengths[group]) for entry in zip(*columns, strict=True)]
