"""Binds sessions and partitions to the scheduler and its pool."""

from __future__ import annotations

from kvoffload_agent.partitions.partition import Pool
from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.scheduler.types import SchedulerConfig
from kvoffload_agent.server.engine import Engine
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.pool import PartitionPool


def make_pool(min_reuse_count: int) -> Pool:
    """Return the pool of a new partition, without any slot yet.

    ``min_reuse_count``: store.minReuseCount of the engine that comes first.
    """
    return PartitionPool(HostConfig(store_threshold=min_reuse_count))


def make_engine(config: SchedulerConfig, pool: Pool) -> Engine:
    """Return the scheduler of an engine of a partition.

    Raises:
        ValueError: the engine's geometry contradicts itself.
    """
    assert isinstance(pool, PartitionPool)
    return EngineScheduler(config, pool, holds_slots_at_reset=True)
