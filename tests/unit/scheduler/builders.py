"""Engines and pools in a given state, for tests of the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import (
    CopyPlan,
    GroupConfig,
    GroupKind,
    Handoff,
    LoadResult,
    MatchResult,
    RequestCaps,
    ScheduledRequest,
    SchedulerConfig,
    StepInput,
    StepResult,
)
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.secondary import Finished, Key, Verdict
from kvoffload_agent.tiers.slots import Slots

FREE = RequestCaps(prompt_only=False)


def full(block: int, *, eagle: bool = False) -> GroupConfig:
    return GroupConfig(kind=GroupKind.FULL, tokens_per_block=block, eagle=eagle)


def sliding(block: int, window: int, *, extra: int = 0, eagle: bool = False) -> GroupConfig:
    return GroupConfig(
        kind=GroupKind.SLIDING_WINDOW,
        tokens_per_block=block,
        window=window,
        extra_retained_tokens=extra,
        eagle=eagle,
    )


def mamba(block: int, *, align: bool = True) -> GroupConfig:
    return GroupConfig(kind=GroupKind.MAMBA, tokens_per_block=block, mamba_align=align)


def hashes_of(name: int, count: int) -> list[bytes]:
    """Hashes of a prompt; those of different names never meet."""
    return [name.to_bytes(16, "big") + at.to_bytes(16, "big") for at in range(1, count + 1)]


class AskedPool(PartitionPool):
    """Remembers which keys were asked for."""

    def __init__(
        self,
        config: HostConfig | None = None,
        *,
        tiers: Sequence[StubTier] = (),
        slot_bytes: int = 0,
    ) -> None:
        super().__init__(config, tiers=tiers, slot_bytes=slot_bytes)
        self.asked: list[Key] = []

    def find(self, client: Client, group: int, hashes: Sequence[bytes]) -> Slots:
        self.asked += [(group, key) for key in hashes]
        return super().find(client, group, hashes)


@dataclass
class StubTier:
    """A tier whose answers are given; nothing it begins ends."""

    answers: dict[Key, Verdict] = field(default_factory=dict)
    medium: str | None = "storage"
    locality: str | None = "local"
    request_level: bool = False
    done: list[Finished] = field(default_factory=list)
    loads: dict[int, Sequence[Key]] = field(default_factory=dict)
    stores: dict[int, Sequence[Key]] = field(default_factory=dict)

    def lookup(self, request: int, key: Key) -> Verdict:
        return self.answers.get(key, Verdict.MISS)

    def submit_store(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        self.stores[job] = keys

    def submit_load(self, job: int, request: int, keys: Sequence[Key], slots: Slots) -> None:
        self.loads[job] = keys

    def poll(self) -> Sequence[Finished]:
        done, self.done = self.done, []
        return done

    def drain(self) -> None:
        return

    def finish(self, request: int) -> None:
        return


class World:
    """One engine on a pool, with one prompt whose keys are put where a test wants them."""

    def __init__(
        self,
        *groups: GroupConfig,
        tokens: int,
        per_chunk: int = 1,
        per_hash: int | None = None,
        slots: int = 4096,
        tiers: Sequence[StubTier] = (),
        retention: int | None = None,
        workers: int = 1,
        prefix_caching: bool = True,
        host: HostConfig | None = None,
        sync_budget: int = 0,
        bytes_per_token: int = 0,
        slot_bytes: int = 0,
    ) -> None:
        self.per_hash = per_hash or math.gcd(*(group.tokens_per_block for group in groups))
        self.tokens = tokens
        self.tiers = list(tiers) or [StubTier()]
        self.pool = AskedPool(host, tiers=self.tiers if tiers else (), slot_bytes=slot_bytes)
        self.pool.add_slots(slots)
        self.config = SchedulerConfig(
            groups=groups,
            tokens_per_hash=self.per_hash,
            blocks_per_chunk=per_chunk,
            num_workers=workers,
            enable_prefix_caching=prefix_caching,
            retention_interval=retention,
            sync_load_budget_bytes=sync_budget,
            block_bytes=bytes_per_token * groups[0].tokens_per_block,
        )
        self.engine = EngineScheduler(self.config, self.pool)
        self.hashes = hashes_of(0, tokens // self.per_hash)
        self._blocks = 1
        self._handles = 0
        self.computed: dict[int, int] = {}

    # --- where keys are --------------------------------------------------------------------

    def put(self, group: int, keys: Sequence[bytes], *, written: bool = True) -> None:
        """Put keys into host memory, readable or still being written."""
        if not keys:
            return
        request = self.pool.open()
        request.store_tiers = ()
        run = KeyRun(group=group, hashes=list(keys), positions=None)
        grant = self.pool.offer(self.engine.client, request, [run])
        assert grant is not None
        if written:
            self.pool.stored(request, grant.written(), success=True)

    def put_all(self, groups: Sequence[int] | None = None) -> None:
        """Put the key of every hash of the prompt, for every group."""
        for group in groups if groups is not None else range(len(self.config.groups)):
            self.put(group, self.hashes)

    def put_chunks(self, letters: Mapping[int, str]) -> None:
        """Per group and chunk: H readable, P being written, R a tier does not know yet, M none."""
        for number, row in letters.items():
            keys = self.chunk_keys(number)
            self.put(number, [key for key, at in zip(keys, row, strict=False) if at == "H"])
            pending = [key for key, at in zip(keys, row, strict=False) if at == "P"]
            self.put(number, pending, written=False)
            for key, at in zip(keys, row, strict=False):
                if at == "R":
                    self.tiers[0].answers[number, key] = Verdict.RETRY

    def chunk_keys(self, group: int) -> list[bytes]:
        stride = self.engine.geometry.groups[group].stride
        return self.hashes[stride - 1 :: stride]

    # --- a request -------------------------------------------------------------------------

    def request(
        self,
        caps: RequestCaps = FREE,
        *,
        tokens: int | None = None,
        hashes: Sequence[bytes] | None = None,
        skip_reading: bool = False,
    ) -> int:
        """Announce a request with the prompt, and return its handle."""
        size = self.tokens if tokens is None else tokens
        self._handles += 1
        self.engine.new_request(
            self._handles,
            num_tokens=size,
            num_prompt_tokens=size,
            hashes=self.hashes[: size // self.per_hash] if hashes is None else hashes,
            caps=caps,
            skip_reading_prefix_cache=skip_reading,
        )
        return self._handles

    def ask(
        self,
        caps: RequestCaps = FREE,
        *,
        local: int = 0,
        max_new: int | None = None,
    ) -> MatchResult:
        """Announce a request and query it at once."""
        self.handle = self.request(caps)
        self.pool.asked.clear()
        return self.match(self.handle, local=local, max_new=max_new)

    def match(self, handle: int, *, local: int = 0, max_new: int | None = None) -> MatchResult:
        return self.engine.match(handle, computed=local, max_new_tokens=max_new, now=0.0)

    def new_blocks(self, count: int) -> list[int]:
        first, self._blocks = self._blocks, self._blocks + count
        return list(range(first, first + count))

    def alloc(
        self, handle: int, tokens: int, blocks: Sequence[Sequence[int]] | None = None
    ) -> LoadResult:
        """Allocate blocks up to the end of a load, those of other tokens not yet."""
        if blocks is None:
            end = self.engine.requests[handle].local + tokens
            blocks = [self.new_blocks(-(-end // g.tokens_per_block)) for g in self.config.groups]
        tables = [np.array(table, dtype=np.int64) for table in blocks]
        return self.engine.alloc(handle, external_tokens=tokens, blocks=tables)

    def run(
        self,
        handle: int,
        scheduled: int,
        *,
        handoffs: Sequence[Handoff] = (),
        blocks: Sequence[Sequence[int]] | None = None,
        new: bool = False,
    ) -> StepResult:
        """Compute ``scheduled`` more tokens of a request, with blocks allocated as needed."""
        before = self.computed.get(handle, 0)
        new = new or handle not in self.computed
        after = before + scheduled
        if blocks is None:
            blocks = [
                self.new_blocks(-(-after // group.tokens_per_block) - have)
                for group, have in zip(
                    self.config.groups,
                    [0 if new else len(t) for t in self.engine.requests[handle].blocks],
                    strict=True,
                )
            ]
        self.computed[handle] = after
        return self.engine.step(
            StepInput(
                requests=[
                    ScheduledRequest(
                        handle=handle,
                        computed=before,
                        scheduled=scheduled,
                        blocks=[np.array(table, dtype=np.int64) for table in blocks],
                        new=new,
                    )
                ],
                handoffs={handle: handoffs} if handoffs else {},
            ),
            now=0.0,
        )

    def grow(self, handle: int, count: int) -> None:
        """Sample tokens."""
        state = self.engine.requests[handle]
        total = state.num_tokens + count
        have = len(state.hashes)
        more = hashes_of(0, total // self.per_hash)[have:]
        self.engine.append(handle, num_tokens=total, hashes=more)

    def end(self, handle: int, *, status: str = "stopped") -> StepResult:
        """End a request and build the step that says so."""
        self.engine.finish(handle, status=status, computed=self.computed.get(handle, 0))
        return self.idle(finished=[handle])

    def idle(self, *, finished: Sequence[int] = (), preempted: Sequence[int] = ()) -> StepResult:
        step = StepInput(requests=[], finished=finished, preempted=preempted)
        return self.engine.step(step, now=0.0)

    def done(self, *plans: CopyPlan) -> None:
        """Acknowledge jobs."""
        for _ in range(self.config.num_workers):
            self.engine.complete(done=[plan.job for plan in plans], failed=[], now=0.0)

    def chunks_of(self, plans: Sequence[CopyPlan], group: int = 0) -> list[int]:
        """Return the numbers of the chunks that plans copy for a group."""
        keys = hashes_of(0, 100_000 // self.per_hash)
        stride = self.engine.geometry.groups[group].stride
        number = {key: at // stride for at, key in enumerate(keys)}
        return [number[key] for plan in plans for g, key in plan.keys if g == group]
