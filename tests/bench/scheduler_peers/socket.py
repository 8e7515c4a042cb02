"""This project's scheduler in an agent's process, asked through the client."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Self

import numpy as np
from tests.bench.scheduler_peers.workload import HASH_BYTES, TOKENS_PER_BLOCK, Hashes

from kvoffload_api.wire.messages import Group
from kvoffload_client import (
    ClientSettings,
    EngineLayout,
    KVLayer,
    ScheduledRequest,
    SchedulerSession,
    StepInput,
    WorkerSession,
)

BLOCK_BYTES = 4096
DEADLINE_SECONDS = 30.0


@dataclass(slots=True)
class _Match:
    handle: int
    keys: Hashes


class Remote:
    """An engine whose one prompt the agent has stored."""

    def __init__(self, socket: str, keys: Hashes) -> None:
        settings = ClientSettings(
            session_key=secrets.token_hex(16),
            socket_path=socket,
            # No lookup may be answered "later" here: what is measured is when the answer comes.
            hook_deadline_seconds=5.0,
        )
        group = Group(kind="full", tokens_per_block=TOKENS_PER_BLOCK, block_bytes=BLOCK_BYTES)
        layout = EngineLayout(
            identity={"model": "bench"},
            groups=[group],
            world_size=1,
            tokens_per_hash=TOKENS_PER_BLOCK,
            blocks_per_chunk=1,
            block_hash_bytes=HASH_BYTES,
        )
        memory = np.zeros((len(keys) + 1, BLOCK_BYTES), dtype=np.uint8)
        layer = KVLayer(
            memory=memory,
            num_blocks=len(memory),
            block_stride=BLOCK_BYTES,
            block_bytes=BLOCK_BYTES,
        )
        self.session = SchedulerSession(settings=settings, layout=layout)
        self.worker = WorkerSession(settings=settings, rank=0, memory=[[layer]])
        self._keys = keys

    def __enter__(self) -> Self:
        self.session.start()
        self.worker.start()
        assert self.session.wait_ready(timeout_seconds=DEADLINE_SECONDS), "no agent"
        assert self.worker.wait_ready(timeout_seconds=DEADLINE_SECONDS), "no agent"
        until = time.monotonic() + DEADLINE_SECONDS
        # The agent grows its memory while the engine runs: what did not fit is offered again.
        while self._store() < len(self._keys) * TOKENS_PER_BLOCK:
            assert time.monotonic() < until, "the prompt was not stored in time"
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.close()
        self.session.close()

    def prepare_match(self, keys: Hashes) -> _Match:
        return _Match(0, keys)

    def match(self, prepared: _Match) -> int | None:
        prepared.handle = self._announce(prepared.keys)
        return self.session.match(prepared.handle, computed=0).tokens

    def forget(self, prepared: _Match) -> None:
        self.session.finish(prepared.handle, status="aborted", computed=0)
        self.session.step(StepInput(finished=[prepared.handle]))

    def _announce(self, keys: Hashes) -> int:
        tokens = len(keys) * TOKENS_PER_BLOCK
        return self.session.new_request(
            request_id="bench", num_tokens=tokens, num_prompt_tokens=tokens, hashes=keys
        )

    def _store(self) -> int:
        """Run the prompt once; return how many of its tokens could have been loaded."""
        handle = self._announce(self._keys)
        found = self.session.match(handle, computed=0).tokens or 0
        entry = ScheduledRequest(
            handle=handle,
            computed=0,
            scheduled=len(self._keys) * TOKENS_PER_BLOCK,
            blocks=[list(range(1, len(self._keys) + 1))],
            new=True,
        )
        jobs = self.session.step(StepInput(requests=[entry])).stores
        for job in jobs:
            self.worker.submit_store(job)
        self.worker.wait([job.key for job in jobs], timeout_seconds=DEADLINE_SECONDS)
        self.session.complete(result.key for result in self.worker.poll())
        self.session.finish(handle, status="aborted", computed=0)
        self.session.step(StepInput(finished=[handle]))
        return found
