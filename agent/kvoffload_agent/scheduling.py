"""Binds sessions and partitions to the scheduler and its pool."""

from __future__ import annotations

from collections.abc import Sequence

from kvoffload_agent.partitions.partition import Partition, Pool
from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import SchedulerConfig
from kvoffload_agent.server.engine import Engine
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.pool import PartitionPool
from kvoffload_agent.tiers.secondary import SecondaryTier


def make_pool(
    partition: Partition, min_reuse_count: int, tiers: Sequence[SecondaryTier] = ()
) -> Pool:
    """Return the pool of a new partition, without any slot yet.

    ``min_reuse_count``: store.minReuseCount of the engine that comes first.
    ``tiers``: below host memory. Whether they keep up is theirs to measure: the disk is one for
    all partitions.
    """
    del partition
    return PartitionPool(HostConfig(store_threshold=min_reuse_count), tiers=tiers)


def make_engine(config: SchedulerConfig, pool: Pool) -> Engine:
    """Return the scheduler of an engine of a partition.

    Raises:
        ValueError: the engine's geometry contradicts itself.
    """
    assert isinstance(pool, PartitionPool)
    return EngineScheduler(config, pool, safe_reset=True)
