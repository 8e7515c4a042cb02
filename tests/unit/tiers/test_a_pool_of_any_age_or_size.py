"""A pool without memory refuses offers; the order of use counts however long a pool lived."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.tiers.test_host_memory import Bench, _evicted

from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.policy.arc import AdaptiveReplacement
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_a_pool_that_was_never_given_memory_refuses_what_it_is_offered(policy: str) -> None:
    pool = PartitionPool(HostConfig(eviction_policy=policy))  # type: ignore[arg-type]
    run = KeyRun(group=0, hashes=[bytes(32)], positions=np.array([16]))
    assert pool.offer(pool.join(), pool.open(), [run]) is None
    pool.add_slots(1)
    assert pool.offer(pool.join(), pool.open(), [run]) is not None


@pytest.mark.parametrize("moves", [0, 1 << 60])
def test_chunks_leave_in_the_order_of_their_use_however_many_there_were(moves: int) -> None:
    bench = Bench(100, eviction_policy="arc")
    policy = bench.pool.host.policy
    assert isinstance(policy, AdaptiveReplacement)
    policy._clock = moves
    bench.store(bench.pool.open(), *range(99, -1, -1))
    assert _evicted(bench.offer(bench.pool.open(), *range(200, 205))) == [99, 98, 97, 96, 95]
