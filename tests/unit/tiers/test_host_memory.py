"""The worked examples of the specification's section 8: slots, pins and eviction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kvoffload_agent.tiers.host import Grant, HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import NotReadyError, PartitionPool
from kvoffload_agent.tiers.request import PoolRequest
from kvoffload_agent.tiers.slots import READY, Slots


class Bench:
    """A pool whose keys are small numbers."""

    def __init__(self, slots: int, **host: object) -> None:
        self.pool = PartitionPool(HostConfig(**host))  # type: ignore[arg-type]
        self.pool.add_slots(slots)
        self.client = self.pool.join()

    def offer(
        self, request: PoolRequest, *keys: int, positions: Sequence[int] | None = None
    ) -> Grant | None:
        at = None if positions is None else np.array(positions)
        run = KeyRun(group=0, hashes=[_key(key) for key in keys], positions=at)
        return self.pool.offer(self.client, request, [run])

    def store(
        self, request: PoolRequest, *keys: int, positions: Sequence[int] | None = None
    ) -> Grant:
        grant = self.offer(request, *keys, positions=positions)
        assert grant is not None
        self.pool.stored(request, grant.written(), success=True)
        return grant

    def slots(self, *keys: int) -> Slots:
        return self.pool.find(self.client, 0, [_key(key) for key in keys])

    def pin(self, request: PoolRequest, *keys: int) -> Slots:
        run = KeyRun(group=0, hashes=[_key(key) for key in keys], positions=None)
        slots = self.slots(*keys)
        self.pool.pin(request, [run], [slots])
        return slots

    def resident(self, *keys: int) -> list[int]:
        return [
            key for key, slot in zip(keys, self.slots(*keys).tolist(), strict=True) if slot >= 0
        ]


def _key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _evicted(grant: Grant | None) -> list[int]:
    assert grant is not None
    return [int.from_bytes(key, "big") for _, key in grant.evicted]


def test_61_and_62_eviction_is_all_or_nothing_and_spares_pinned_chunks() -> None:
    bench = Bench(4)
    first, second, third = bench.pool.open(), bench.pool.open(), bench.pool.open()
    bench.store(first, 1, 2)
    grant = bench.offer(second, 2, 3, 4, 5)
    assert grant is not None
    assert grant.slots[0].tolist() == [-1, 2, 3, 0]
    assert _evicted(grant) == [1]
    bench.pool.stored(second, grant.written(), success=True)
    pins = bench.pin(third, 2, 3)
    assert bench.offer(third, 6, 7, 8) is None
    assert bench.resident(1, 2, 3, 4, 5, 6, 7, 8) == [2, 3, 4, 5]
    bench.pool.unpin(pins, success=True)
    assert _evicted(bench.offer(third, 6, 7, 8)) == [2, 3, 4]


def test_63_an_offer_larger_than_the_pool_is_refused() -> None:
    bench = Bench(2)
    assert bench.offer(bench.pool.open(), 1, 2, 3) is None
    assert bench.pool.free_slots == 2


def test_64_of_a_running_request_the_tail_leaves_first() -> None:
    bench = Bench(4)
    running, other = bench.pool.open(), bench.pool.open()
    bench.store(running, 1, 2, 3, 4, positions=[1, 2, 3, 4])
    assert _evicted(bench.offer(other, 5, 6, positions=[1, 2])) == [4, 3]


def test_65_the_tail_of_the_request_that_ended_first_leaves_first() -> None:
    bench = Bench(4)
    a, b = bench.pool.open(), bench.pool.open()
    bench.store(a, 1, 2, positions=[1, 2])
    bench.store(b, 3, 4, positions=[1, 2])
    bench.pool.finish(b)
    bench.pool.finish(a)
    assert _evicted(bench.offer(bench.pool.open(), 5, positions=[1])) == [4]


def test_66_a_lookup_protects_nothing() -> None:
    bench = Bench(2)
    bench.store(bench.pool.open(), 1, 2, positions=[1, 2])
    assert bench.resident(2) == [2]
    assert _evicted(bench.offer(bench.pool.open(), 3, positions=[1])) == [2]


def test_67_a_threshold_of_two_stores_at_the_second_offer() -> None:
    bench = Bench(2, store_threshold=2)
    request = bench.pool.open()
    first, second = bench.offer(request, 1), bench.offer(request, 1)
    assert first is not None
    assert second is not None
    assert not len(first.written())
    assert len(second.written()) == 1


def test_what_is_not_ready_cannot_be_pinned_and_nothing_else_is_then() -> None:
    bench = Bench(4)
    request = bench.pool.open()
    bench.store(request, 1)
    bench.offer(request, 2)
    with pytest.raises(NotReadyError):
        bench.pin(request, 1, 2)
    with pytest.raises(NotReadyError):
        bench.pin(request, 1, 9)
    assert bench.pool.host.table.refs[bench.slots(1)].tolist() == [READY]


def test_a_failed_write_leaves_no_key_and_frees_its_slot() -> None:
    bench = Bench(2)
    request = bench.pool.open()
    grant = bench.offer(request, 1, 2)
    assert grant is not None
    bench.pool.stored(request, grant.written(), success=False)
    assert bench.resident(1, 2) == []
    assert bench.pool.free_slots == 2


def test_a_chunk_whose_load_failed_is_not_read_again() -> None:
    bench = Bench(2)
    request = bench.pool.open()
    bench.store(request, 1, 2)
    slots = bench.pin(request, 1)
    bench.pool.unpin(slots, success=False)
    assert bench.resident(1, 2) == [2]


def test_what_one_engine_leases_no_other_evicts() -> None:
    bench = Bench(2)
    other = bench.pool.join()
    bench.store(bench.pool.open(), 1, 2, positions=[1, 2])
    other.lease(7, bench.slots(2))
    grant = bench.offer(bench.pool.open(), 3, positions=[1])
    assert _evicted(grant) == [1]
    assert bench.offer(bench.pool.open(), 4, positions=[1]) is None
    run = KeyRun(group=0, hashes=[_key(5)], positions=np.array([1]))
    own = bench.pool.offer(other, bench.pool.open(), [run])
    assert _evicted(own) == [2]


def test_a_reset_keeps_the_slots_that_others_use_until_they_are_done() -> None:
    bench = Bench(4)
    mine, theirs = bench.pool.open(), bench.pool.open()
    bench.store(mine, 1, 2)
    pinned = bench.pin(theirs, 1)
    writing = bench.offer(theirs, 3)
    assert writing is not None
    bench.pool.reset(bench.client, own=np.empty(0, dtype=np.int64))
    assert bench.resident(1, 2, 3) == []
    assert bench.pool.free_slots == 2
    bench.store(mine, 4, 5)
    assert not set(bench.slots(4, 5).tolist()) & {int(pinned[0]), int(writing.written()[0])}
    bench.pool.unpin(pinned, success=True)
    bench.pool.stored(theirs, writing.written(), success=True)
    assert bench.resident(1, 3) == []
    assert bench.pool.free_slots == 2


def test_retired_slots_are_emptied_and_never_taken_again() -> None:
    bench = Bench(6)
    request = bench.pool.open()
    bench.store(request, 1, 2, 3, 4)
    pinned = bench.pin(request, 4)
    assert int(pinned[0]) == 3
    assert bench.pool.retire_slots(2, 5) == 1
    assert bench.resident(1, 2, 3, 4) == [1, 2, 4]
    bench.pool.unpin(pinned, success=True)
    assert bench.resident(4) == []
    assert bench.pool.retire_slots(2, 5) == 0
    assert bench.pool.free_slots == 1
    grant = bench.store(request, 7, 8)
    assert not set(grant.written().tolist()) & {2, 3, 4}


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_pool_without_slots_refuses_and_grows(policy: str) -> None:
    bench = Bench(0, eviction_policy=policy)
    request = bench.pool.open()
    assert bench.offer(request, 1) is None
    bench.pool.add_slots(3)
    bench.store(request, 1, 2)
    assert bench.resident(1, 2) == [1, 2]
