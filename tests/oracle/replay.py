"""Feeds the operations of one case to the scheduler and compares every result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.oracle import state
from tests.oracle.direct import Direct
from tests.oracle.names import Names
from tests.oracle.params import caps_of
from tests.oracle.tiers import RecordedTier

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import (
    CopyPlan,
    GroupConfig,
    GroupKind,
    Handoff,
    ScheduledRequest,
    SchedulerConfig,
    StepInput,
)
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.slots import Slots

Json = dict[str, Any]

# Entries are [key, chunk, refs]; numbers of chunks are free.
_CHUNK_LISTS = ("lru", "t1", "t2")


class MismatchError(Exception):
    """A result differs from what was recorded."""

    def __init__(self, at: int, op: Json, what: str, expected: object, got: object) -> None:
        self.op = op
        self.what = what
        self.got = got
        super().__init__(
            f"op {at} ({op.get('op')} {op.get('id', '')}): {what}:"
            f" expected {expected!r}, got {got!r}"
        )


class CountingPool(PartitionPool):
    """Counts lookups, for the cases that forbid any."""

    lookups = 0

    def find(self, client: Client, group: int, hashes: Sequence[bytes]) -> Slots:
        """Look up."""
        self.lookups += 1
        return super().find(client, group, hashes)


class Replay:
    """One case."""

    def __init__(self, case: Json) -> None:
        config = case["config"]
        self._case = case
        self.names = Names()
        self.tiers = [RecordedTier(tier, self.names) for tier in config.get("tiers") or []]
        self.pool = CountingPool(
            HostConfig(
                eviction_policy=config.get("eviction_policy", "lru"),
                store_threshold=config.get("store_threshold", 0),
                max_tracker_size=config.get("max_tracker_size", 64_000),
                events=config.get("events", False),
            ),
            tiers=self.tiers,
            allow_undeclared=True,
        )
        self.pool.add_slots(config["num_cpu_chunks"])
        self.engine = EngineScheduler(_engine_config(config), self.pool)
        self.ids: list[str] = []
        self._handles: dict[str, int] = {}
        self._tokens: dict[str, list[int]] = {}
        self._prompt_only = config.get("offload_prompt_only", True)
        self._workers = config.get("num_workers", 1)
        self._direct = Direct(self.pool, self.engine.client, self.names)
        self._slots: dict[tuple[int, bytes], int] = {}

    def run(self) -> None:
        """Replay the case.

        Raises:
            MismatchError: at the first result that differs.
        """
        for at, op in enumerate(self._case["ops"]):
            for tier in self.tiers:
                tier.submitted.clear()
            got = getattr(self, f"_{op['op']}")(op)
            self._compare(at, op, got)
        final = self._case["final"]
        if final is not None:
            self._compare_values(len(self._case["ops"]), {"op": "final"}, final, self._state())

    # --- comparing ---------------------------------------------------------------------------

    def _compare(self, at: int, op: Json, got: Json) -> None:
        expected = {key: value for key, value in op["expect"].items() if key != "calls"}
        self._compare_values(at, op, expected, got)
        calls = [c for c in op["expect"].get("calls", []) if ".submit_" in c["fn"]]
        want = [(c["fn"], c["job"], sorted(c["keys"])) for c in calls]
        have = [
            (f"tier{number}.{call.function}", call.job, sorted(map(self.names.name_of, call.keys)))
            for number, tier in enumerate(self.tiers)
            for call in tier.submitted
        ]
        if sorted(want) != sorted(have):
            raise MismatchError(at, op, "tier jobs", want, have)

    def _compare_values(self, at: int, op: Json, expected: Json, got: Json) -> None:
        for key in [*expected, *(set(got) - set(expected))]:
            want, have = expected.get(key), got.get(key)
            if key == "free_list":
                continue
            if key in _CHUNK_LISTS and want is not None:
                want = [[name, ref] for name, _, ref in want]
            if want != have:
                raise MismatchError(at, op, key, want, have)

    # --- operations --------------------------------------------------------------------------

    def _new_request(self, op: Json) -> Json:
        handle = len(self.ids)
        self.ids.append(op["id"])
        self._handles[op["id"]] = handle
        got: Json = {}
        if "tokens" in op:
            tokens = list(op["tokens"])
            self._tokens[op["id"]] = tokens
            hashes = self.names.chain(tokens, self._case["config"]["tokens_per_hash"])
            got["hashes"] = [self.names.name(value) for value in hashes]
            num_tokens = len(tokens)
        else:
            hashes = [self.names.hash(value) for value in op["hashes"]]
            num_tokens = op["num_tokens"]
        caps = caps_of(op.get("params"), prompt_only=self._prompt_only)
        self.engine.new_request(
            handle,
            num_tokens=num_tokens,
            num_prompt_tokens=num_tokens,
            hashes=hashes,
            caps=caps,
            skip_reading_prefix_cache=op.get("skip_reading_prefix_cache", False),
        )
        got["max_load_tokens"] = caps.max_load_tokens
        got["max_offload_tokens"] = caps.max_offload_tokens
        return got

    def _append(self, op: Json) -> Json:
        handle = self._handles[op["id"]]
        request = self.engine.requests[handle]
        if "tokens" not in op:
            hashes = [self.names.hash(value) for value in op.get("hashes", [])]
            total = request.num_tokens + op["n"]
            self.engine.append(handle, num_tokens=total, hashes=hashes)
            return {}
        tokens = self._tokens[op["id"]]
        before = len(request.hashes)
        tokens += op["tokens"]
        hashes = self.names.chain(tokens, self._case["config"]["tokens_per_hash"])[before:]
        self.engine.append(handle, num_tokens=len(tokens), hashes=hashes)
        return {"hashes": [self.names.name(value) for value in hashes]}

    def _match(self, op: Json) -> Json:
        handle = self._handles[op["id"]]
        before = self.pool.lookups
        result = self.engine.match(
            handle, computed=op["computed"], max_new_tokens=op.get("max_new"), now=0.0
        )
        state = self.engine.requests[handle]
        if (state.caps.max_load_tokens == 0 or state.skip_reading) and self.pool.lookups > before:
            raise AssertionError("a lookup was issued although none may be")
        return {"tokens": result.tokens, "async": result.load_async}

    def _alloc(self, op: Json) -> Json:
        result = self.engine.alloc(
            self._handles[op["id"]],
            external_tokens=op["external"],
            blocks=[np.array(table, dtype=np.int64) for table in op["blocks"]],
        )
        if result.plan is None:
            return {}
        return {
            "load": self._shown(op, "load", result.plan, store=False),
            "sources": dict(result.sources),
        }

    def _step(self, op: Json) -> Json:
        entries = {
            item["id"]: self._scheduled(item, new=new)
            for new, items in ((False, op.get("cached", [])), (True, op.get("new", [])))
            for item in items
        }
        result = self.engine.step(
            StepInput(
                requests=[entries[name] for name in op.get("order", entries)],
                finished=[self._handles[name] for name in op.get("finished", [])],
                preempted=[self._handles[name] for name in op.get("preempted", [])],
                handoffs={
                    self._handles[name]: [
                        Handoff(group=group, block=block, boundary=boundary)
                        for group, block, boundary in items
                    ]
                    for name, items in op.get("handoffs", {}).items()
                },
                copies=[(source, target) for source, target in op.get("copies", [])],
                shared_prefix_boundaries={
                    self._handles[name]: boundary
                    for name, boundary in op.get("shared_prefix_boundaries", {}).items()
                },
            ),
            now=0.0,
        )
        stores = [self._shown(op, at, plan, store=True) for at, plan in enumerate(result.stores)]
        return {
            "loads": list(result.loads),
            "stores": stores,
            "flush": list(result.flush),
            "busy": result.busy,
        }

    def _scheduled(self, item: Json, *, new: bool) -> ScheduledRequest:
        tables = item.get("blocks")
        return ScheduledRequest(
            handle=self._handles[item["id"]],
            computed=item["computed"],
            scheduled=item["scheduled"],
            blocks=None if tables is None else [np.array(t, dtype=np.int64) for t in tables],
            new=new,
            resumed=item.get("resumed", False),
        )

    def _complete(self, op: Json) -> Json:
        for item in op["jobs"]:
            job, times = item if isinstance(item, list) else (item, 1)
            for _ in range(times):
                self.engine.complete(done=[job], failed=[], now=0.0)
        return {}

    def _finish(self, op: Json) -> Json:
        self.engine.finish(self._handles[op["id"]], status=op["status"], computed=op["computed"])
        return {}

    def _reset_cache(self, op: Json) -> Json:
        self.engine.reset()
        return {}

    def _events(self, op: Json) -> Json:
        events = []
        for event in self.pool.take_events():
            names = [self.names.name_of(key) for key in event.keys]
            if event.stored:
                # Recorded from a set, in the order of keys.
                events.append({"stored": sorted(names, key=_by_number)})
            else:
                events.append({"removed": names})
        return {"events": events}

    def _state(self, op: Json | None = None) -> Json:
        return state.state_of(self.engine, self.names, self.ids, self.tiers)

    def _tier_finish(self, op: Json) -> Json:
        arrived = op.get("successful_keys")
        self.tiers[op["tier"]].end(
            op.get("jobs"),
            success=op.get("success", True),
            arrived=None if arrived is None else [self.names.key(name) for name in arrived],
        )
        return {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_m_"):
            return self._direct.run
        raise AttributeError(name)

    # --- plans -------------------------------------------------------------------------------

    def _shown(self, op: Json, at: int | str, plan: CopyPlan, *, store: bool) -> Json:
        """Return a plan as recorded; slots are replaced by the recorded chunk numbers."""
        expect = op["expect"]
        recorded = expect["load"] if isinstance(at, str) else (expect["stores"] + [{}])[at]
        shown = {
            "job": plan.job,
            "keys": [self.names.name_of(key) for key in plan.keys],
            "cpu": recorded.get("cpu"),
            "gpu": plan.blocks.tolist(),
            "sizes": list(plan.group_sizes),
            "first": list(plan.first),
        }
        if store:
            shown["req"] = self.ids[plan.handle]
        self._check_slots(plan, store=store)
        return shown

    def _check_slots(self, plan: CopyPlan, *, store: bool) -> None:
        """One slot per key, the same at store and at load; the place within it as the block's."""
        begin = 0
        keys = list(plan.keys)
        index = plan.index.tolist()
        per_chunk = self.engine.geometry.blocks_per_chunk
        for number, size in enumerate(plan.group_sizes):
            slots = plan.slots[begin : begin + size].tolist()
            distinct = list(dict.fromkeys(slots))
            mine = [key for key in keys if key[0] == number]
            assert len(distinct) == len(mine), (distinct, mine)
            for slot, key in zip(distinct, mine, strict=True):
                if store:
                    self._slots = {k: s for k, s in self._slots.items() if s != slot}
                    self._slots[key] = slot
                else:
                    assert self._slots.setdefault(key, slot) == slot, (key, slot)
            if size:
                assert index[begin] == plan.first[number] % per_chunk
            begin += size
        assert begin == len(plan.blocks) == len(plan.slots) == len(plan.index)


def _engine_config(config: Json) -> SchedulerConfig:
    return SchedulerConfig(
        groups=[
            GroupConfig(
                kind=GroupKind(group["kind"]),
                tokens_per_block=group["tokens_per_block"],
                window=group.get("window", 0),
                eagle=group.get("eagle", False),
                mamba_align=group.get("mode") == "align",
                extra_retained_tokens=group.get("extra_retained_tokens", 0),
            )
            for group in config["groups"]
        ],
        tokens_per_hash=config["tokens_per_hash"],
        blocks_per_chunk=config.get("blocks_per_chunk", 1),
        num_workers=config.get("num_workers", 1),
        enable_prefix_caching=config.get("enable_prefix_caching", True),
        retention_interval=config.get("retention_interval"),
    )


def _by_number(name: str) -> tuple[int, str, int]:
    group, value = name.split(":")
    digits = value.lstrip("t")
    return int(group), value[: len(value) - len(digits)], int(digits)
