"""The pool against a plain model of it, under random use (section 9, item 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.policy.arc import AdaptiveReplacement
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.slots import EMPTY, READY, WRITING, Slots

OPS = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "done", "fail", "pin", "unpin", "finish", "grow"]),
        st.integers(0, 3),
        st.integers(0, 11),
        st.integers(1, 6),
    ),
    max_size=60,
)


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Model:
    """What is ready, what is being written and what is pinned, beside the pool itself."""

    def __init__(self, policy: str, slots: int) -> None:
        self.pool = PartitionPool(HostConfig(eviction_policy=policy))  # type: ignore[arg-type]
        self.pool.add_slots(slots)
        self.client = self.pool.join()
        self.requests = [self.pool.open() for _ in range(4)]
        self.ready: dict[int, int] = {}
        self.writing: list[tuple[int, dict[int, int]]] = []
        self.pins: list[int] = []

    def find(self, keys: Sequence[int]) -> Slots:
        return self.pool.find(self.client, 0, [_key(key) for key in keys])

    def offer(self, who: int, keys: list[int]) -> None:
        before = self._visible()
        new = sum(slot < 0 for slot in before[2][keys[0] : keys[-1] + 1])
        evictable = set(self.ready) - set(self.pins) - set(keys)
        grant = self.pool.offer(self.client, self.requests[who], [_run(keys)])
        assert (grant is None) == (new > before[1] + len(evictable))
        if grant is None:
            assert self._visible() == before
            return
        evicted = {int.from_bytes(key, "big") for _, key in grant.evicted}
        assert evicted.isdisjoint(keys)
        assert evicted <= set(self.ready)
        assert evicted.isdisjoint(self.pins)
        for key in evicted:
            del self.ready[key]
        pairs = zip(keys, grant.slots[0].tolist(), strict=True)
        taken = {key: slot for key, slot in pairs if slot >= 0}
        if taken:
            self.writing.append((who, taken))

    def complete(self, at: int, *, success: bool) -> None:
        if not self.writing:
            return
        who, taken = self.writing.pop(at % len(self.writing))
        slots = np.array(list(taken.values()), dtype=np.int64)
        self.pool.stored(self.requests[who], slots, success=success)
        if success:
            self.ready |= taken

    def pin(self, who: int, keys: list[int]) -> None:
        some = [key for key in keys if key in self.ready]
        self.pool.pin(self.requests[who], [_run(some)], [self.find(some)])
        self.pins += some

    def unpin(self, at: int) -> None:
        if self.pins:
            self.pool.unpin(self.find([self.pins.pop(at % len(self.pins))]), success=True)

    def drain(self) -> None:
        """Let every copy end."""
        while self.writing:
            self.complete(0, success=True)
        while self.pins:
            self.unpin(0)

    def finish(self, who: int) -> None:
        self.pool.finish(self.requests[who])
        self.requests[who] = self.pool.open()

    def apply(self, op: str, who: int, first: int, size: int) -> None:
        keys = list(range(first, first + size))
        match op:
            case "offer":
                self.offer(who, keys)
            case "done" | "fail":
                self.complete(first, success=op == "done")
            case "pin":
                self.pin(who, keys)
            case "unpin":
                self.unpin(first)
            case "finish":
                self.finish(who)
            case _:
                self.pool.add_slots(size % 3)

    def check(self) -> None:
        expected = dict(self.ready)
        for _, taken in self.writing:
            expected |= taken
        assert self.find(range(20)).tolist() == [expected.get(key, -1) for key in range(20)]
        table = self.pool.host.table
        refs = table.refs[: table.count]
        pending = sum(len(taken) for _, taken in self.writing)
        assert len(set(expected.values())) == len(expected)
        assert len(expected) + self.pool.free_slots == table.count
        assert int(np.count_nonzero(refs != EMPTY)) == len(expected)
        assert int(np.count_nonzero(refs == WRITING)) == pending
        for key, slot in self.ready.items():
            assert refs[slot] == READY + self.pins.count(key)
        policy = self.pool.host.policy
        if isinstance(policy, AdaptiveReplacement):
            assert len(policy.recent_ghosts) <= table.count
            assert len(policy.frequent_ghosts) <= table.count
            assert 0 <= policy.target <= table.count

    def _visible(self) -> tuple[list[int], int, list[int]]:
        refs = self.pool.host.table.refs.tolist()
        return refs, self.pool.free_slots, self.find(range(20)).tolist()


def _run(keys: list[int]) -> KeyRun:
    ends = np.array(keys, dtype=np.int64) + 1
    return KeyRun(group=0, hashes=[_key(key) for key in keys], positions=ends)


@pytest.mark.parametrize("policy", ["lru", "arc"])
@given(ops=OPS, slots=st.integers(0, 8))
def test_slots_keys_and_pins_always_add_up(
    policy: str, ops: list[tuple[str, int, int, int]], slots: int
) -> None:
    model = Model(policy, slots)
    for op in ops:
        model.apply(*op)
        model.check()
    model.drain()
    model.check()
    assert set(model.pool.host.table.refs.tolist()) <= {READY, EMPTY}


@given(
    count=st.integers(1, 12),
    taken=st.integers(1, 12),
    finished=st.booleans(),
)
def test_within_a_request_the_tail_is_evicted_before_the_head(
    count: int,
    taken: int,
    finished: bool,  # noqa: FBT001
) -> None:
    pool = PartitionPool()
    pool.add_slots(count)
    client = pool.join()
    request, other = pool.open(), pool.open()
    keys = list(range(count))
    for at in keys:
        run = KeyRun(group=0, hashes=[_key(at)], positions=np.array([at + 1]))
        grant = pool.offer(client, request, [run])
        assert grant is not None
        pool.stored(request, grant.written(), success=True)
    if finished:
        pool.finish(request)
    size = min(taken, count)
    new = [_key(100 + at) for at in range(size)]
    grant = pool.offer(
        client, other, [KeyRun(group=0, hashes=new, positions=np.arange(1, size + 1))]
    )
    assert grant is not None
    evicted = [int.from_bytes(key, "big") for _, key in grant.evicted]
    assert evicted == keys[::-1][:size]
