"""A chunk's memory may be forgotten or retired while it is written; both leave a sound pool.

The stateful machine of ``tests/unit/scheduler`` found both.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.scheduler.builders import StubTier, hashes_of

from kvoffload_agent.tiers.host import Grant, HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.slots import EMPTY


def _offer(pool: PartitionPool, count: int, *, name: int = 0) -> Grant:
    ends = np.arange(1, count + 1)
    run = KeyRun(group=0, hashes=hashes_of(name, count), positions=ends)
    grant = pool.offer(pool.join(), pool.open(), [run])
    assert grant is not None
    return grant


def test_a_chunk_that_a_reset_forgot_while_it_was_written_goes_to_no_tier() -> None:
    tier = StubTier()
    pool = PartitionPool(tiers=[tier])
    pool.add_slots(2)
    client, request = pool.join(), pool.open()
    run = KeyRun(group=0, hashes=hashes_of(0, 2), positions=np.array([1, 2]))
    grant = pool.offer(client, request, [run])
    assert grant is not None
    pool.reset(client, own=np.empty(0, dtype=np.int64))
    pool.stored(request, grant.written(), success=True)
    assert not tier.stores
    assert pool.host.table.refs[:2].tolist() == [EMPTY, EMPTY]
    assert pool.free_slots == 2


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_chunk_written_into_retired_memory_is_forgotten_and_no_offer_counts_on_it(
    policy: str,
) -> None:
    pool = PartitionPool(HostConfig(eviction_policy=policy))  # type: ignore[arg-type]
    pool.add_slots(4)
    grant = _offer(pool, 4)
    assert pool.retire_slots(2, 4) == 2
    pool.stored(pool.open(), grant.written(), success=True)
    assert pool.host.table.refs[:4].tolist() == [0, 0, EMPTY, EMPTY]
    assert len(_offer(pool, 2, name=1).written()) == 2


def test_a_tier_is_not_given_what_left_with_retired_memory() -> None:
    tier = StubTier()
    pool = PartitionPool(tiers=[tier])
    pool.add_slots(2)
    client, request = pool.join(), pool.open()
    run = KeyRun(group=0, hashes=hashes_of(0, 2), positions=np.array([1, 2]))
    grant = pool.offer(client, request, [run])
    assert grant is not None
    pool.retire_slots(1, 2)
    pool.stored(request, grant.written(), success=True)
    assert list(tier.stores.values()) == [[(0, run.hashes[0])]]
