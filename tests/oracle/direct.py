"""The ``m_*`` operations: the pool without a scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.oracle.names import Names

from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import Client, PartitionPool
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.slots import READY, WRITING, Slots

Json = dict[str, Any]


class Direct:
    """Runs one operation and checks ``calls[0]``, which is its result."""

    def __init__(self, pool: PartitionPool, client: Client, names: Names) -> None:
        self._pool = pool
        self._client = client
        self._names = names
        self._requests: dict[str, tuple[PoolRequest, int | None]] = {}

    def run(self, op: Json) -> Json:
        """Run one operation."""
        got = getattr(self, f"_{op['op'][2:]}")(op)
        want = op["expect"]["calls"][0]
        for key, value in got.items():
            assert want.get(key) == value, f"{key}: expected {want.get(key)!r}, got {value!r}"
        return {}

    def _new_request(self, op: Json) -> Json:
        self._requests[op["id"]] = (self._pool.open(), op.get("positions"))
        return {}

    def _finish(self, op: Json) -> Json:
        request, _ = self._requests.pop(op["id"])
        self._pool.finish(request)
        return {}

    def _lookup(self, op: Json) -> Json:
        refs = self._pool.host.table.refs
        letters = ""
        for key in op["keys"]:
            group, value = self._names.key(key)
            slot = int(self._pool.find(self._client, group, [value])[0])
            letters += "M" if slot < 0 else "H" if refs[slot] >= READY else "P"
        return {"res": letters}

    def _prepare_store(self, op: Json) -> Json:
        request, positions = self._requests[op["id"]]
        runs = self._runs(op["keys"], positions)
        grant = self._pool.offer(self._client, request, runs)
        if grant is None:
            return {"res": None}
        store = [
            self._names.name_of((run.group, key))
            for run, slots in zip(runs, grant.slots, strict=True)
            for key, slot in zip(run.hashes, slots.tolist(), strict=True)
            if slot >= 0
        ]
        return {"store": store, "evicted": [self._names.name_of(key) for key in grant.evicted]}

    def _complete_store(self, op: Json) -> Json:
        request, _ = self._requests.get(op["id"]) or (self._pool.open(), None)
        slots = self._slots(op["keys"])
        slots = slots[slots >= 0]
        writing = slots[self._pool.host.table.refs[slots] == WRITING]
        self._pool.stored(request, writing, success=op.get("success", True))
        return {}

    def _prepare_load(self, op: Json) -> Json:
        request, positions = self._requests[op["id"]]
        runs = self._runs(op["keys"], positions)
        slots = [self._pool.find(self._client, run.group, run.hashes) for run in runs]
        self._pool.pin(request, runs, slots)
        return {}

    def _complete_load(self, op: Json) -> Json:
        self._pool.unpin(self._slots(op["keys"]), success=True)
        return {}

    def _touch(self, op: Json) -> Json:
        request, positions = self._requests[op["id"]]
        for run in self._runs(op["keys"], positions)[::-1]:
            slots = self._pool.find(self._client, run.group, run.hashes)
            self._pool.host.policy.touch(request.scratch, run, slots)
        return {}

    def _reset(self, op: Json) -> Json:
        refs = self._pool.host.table.refs
        pinned = np.repeat(np.arange(len(refs)), np.maximum(refs, 0))
        own = np.concatenate([pinned, np.flatnonzero(refs == WRITING)])
        self._pool.reset(self._client, own=own)
        return {}

    def _slots(self, keys: list[str]) -> Slots:
        pairs = map(self._names.key, keys)
        found = [int(self._pool.find(self._client, group, [key])[0]) for group, key in pairs]
        return np.array(found, dtype=np.int64)

    def _runs(self, keys: list[str], positions: int | None) -> list[KeyRun]:
        """Keys of one group in a row make a run."""
        rows: list[tuple[int, list[bytes]]] = []
        for name in keys:
            group, value = self._names.key(name)
            if not rows or rows[-1][0] != group:
                rows.append((group, []))
            rows[-1][1].append(value)
        return [
            KeyRun(group=group, hashes=hashes, positions=_ends(hashes, positions))
            for group, hashes in rows
        ]


def _ends(hashes: list[bytes], size: int | None) -> Slots | None:
    if size is None:
        return None
    return np.array([int.from_bytes(value, "big") * size for value in hashes], dtype=np.int64)
