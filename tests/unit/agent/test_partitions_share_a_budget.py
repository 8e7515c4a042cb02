"""Growth, sharing and giving back of host memory, with the real arena and the real pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from kvoffload_agent.memory.arena import Arena, Row
from kvoffload_agent.memory.snapshot import GIB, MIB, Level, Snapshot
from kvoffload_agent.partitions.manager import GeometryError, PartitionManager
from kvoffload_agent.partitions.partition import Geometry, Partition, PartitionKey
from kvoffload_agent.scheduling import make_pool

ROW = 64 * 1024


class Engine:
    """A session as partitions see it: maps and gives up what it is asked to, or refuses to."""

    def __init__(self, *, bucket: str = "b", capacity: int | None = None) -> None:
        self.bucket = bucket
        self.capacity = capacity
        self.min_reuse_count = 0
        self.disk_capacity: int | None = None
        self.complete = True
        self.willing = True
        self.mapped: set[int] = set()
        self.changed: Callable[[], None] = lambda: None

    def send_map(self, row: Row) -> None:
        if self.willing:
            self.mapped.update(segment.id for segment in row.segments)

    def send_unmap(self, row: Row) -> None:
        if self.willing:
            self.mapped.difference_update(segment.id for segment in row.segments)

    def has_mapped(self, row: Row) -> bool:
        return row.segments[0].id in self.mapped

    holds = has_mapped


class Node:
    """A manager with a budget that tests change, and its task."""

    def __init__(self, *, budget: int, limit: int = 4 * GIB) -> None:
        self.budget = budget
        self.level = Level(path="/a", version=2, limit=limit)
        self.arena = Arena(snapshot=self.snapshot)
        self.now = 0.0
        self.manager = PartitionManager(
            arena=self.arena,
            budget=lambda: self.budget,
            make_pool=make_pool,
            clock=lambda: self.now,
        )

    def snapshot(self) -> Snapshot:
        used = Level(path="/a", version=2, limit=self.level.limit, usage=self.arena.usage.populated)
        return Snapshot(levels=(used,), available=64 * GIB, total=64 * GIB)

    def attach(self, engine: Engine, *, name: str = "f", ranks: int = 1) -> Partition:
        return self.manager.attach(
            engine,
            key=PartitionKey(namespace="n", fingerprint=name),
            geometry=Geometry(row_bytes=ROW, ranks=ranks),
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.manager.wake()
                await asyncio.sleep(0.005)
                figures = self.manager.figures
                assert figures.mapped <= figures.requested


@contextlib.asynccontextmanager
async def running(node: Node) -> AsyncIterator[Node]:
    task = asyncio.create_task(node.manager.run())
    try:
        yield node
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        node.arena.close_all()


async def test_the_first_segment_comes_with_the_first_engine() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine())
        await node.until(lambda: partition.slots > 0)
        assert partition.pool.free_slots == partition.slots
        assert node.manager.figures.populated == node.manager.figures.mapped > 0


async def test_slots_enter_the_pool_only_when_every_serving_engine_mapped_them() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        slow = Engine()
        slow.willing = False
        partition = node.attach(slow)
        await node.until(lambda: len(partition.pending) == 1)
        assert (partition.slots, partition.pool.free_slots) == (0, 0)
        slow.mapped.add(partition.pending[0].segments[0].id)
        node.manager.admit(partition)
        assert partition.pool.free_slots == partition.slots > 0


async def test_a_late_engine_serves_once_it_mapped_what_is_in_use() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine())
        await node.until(lambda: partition.slots > 0)
        late = Engine()
        node.attach(late)
        assert not partition.ready(late)
        for row in partition.usable_rows():
            late.send_map(row)
        assert partition.ready(late)


async def test_ranks_have_segments_of_consecutive_ids_and_equal_length() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine(), ranks=4)
        await node.until(lambda: partition.slots > 0)
        (row, *_) = partition.rows
        first = row.segments[0].id
        assert [segment.id for segment in row.segments] == [first + rank for rank in range(4)]
        assert len({segment.bytes for segment in row.segments}) == 1


async def test_a_partition_grows_while_it_fills_and_stops_at_its_capacity() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine(capacity=20 * MIB))
        # The pool keeps a segment free; nothing was stored, so one segment would do. Taking slots
        # out of use makes it want more.
        await node.until(lambda: partition.slots > 0)
        partition.pool.retire_slots(0, partition.slots)
        await node.until(lambda: partition.mapped > 8 * MIB)
        for _ in range(50):
            partition.pool.retire_slots(0, len(partition.space))
            partition.retry_at = 0.0
            node.manager.wake()
            await asyncio.sleep(0.005)
        assert 12 * MIB < partition.mapped <= 20 * MIB
        assert partition.refusal is None, "a full cache is no refusal"


async def test_one_rank_of_a_capacity_below_a_row_is_refused_with_the_bytes() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine(capacity=ROW - 1))
        await node.until(lambda: partition.refusal is not None)
        assert partition.refusal is not None
        assert str(ROW) in partition.refusal.reason
        assert node.manager.figures.mapped == 0


async def test_an_idle_partition_stays_until_another_needs_its_bytes() -> None:
    async with running(Node(budget=16 * MIB)) as node:
        first = Engine()
        cold = node.attach(first, name="cold")
        await node.until(lambda: cold.slots > 0)
        node.manager.detach(first, cold)
        other = Engine()
        warm = node.attach(other, name="warm")
        await node.until(lambda: warm.slots > 0)
        assert cold in node.manager.partitions
        for _ in range(100):
            warm.pool.retire_slots(0, len(warm.space))
            warm.retry_at = 0.0
            node.manager.wake()
            await asyncio.sleep(0.002)
        assert node.manager.partitions == [warm]
        assert warm.mapped <= 16 * MIB


async def test_a_lowered_budget_is_given_back_by_engines_in_use() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine())
        await node.until(lambda: partition.slots > 0)
        for _ in range(3):
            before = partition.mapped
            partition.pool.retire_slots(0, len(partition.space))
            await node.until(lambda before=before: partition.mapped > before)  # type: ignore[misc]
        assert node.manager.figures.mapped > 16 * MIB
        node.budget = 16 * MIB
        await node.until(lambda: node.arena.usage.mapped <= 16 * MIB)
        assert partition.slots > 0


async def test_what_an_engine_does_not_give_back_stays_accounted() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        engine = Engine(capacity=64 * MIB)
        partition = node.attach(engine)
        await node.until(lambda: partition.slots > 0)
        held = node.arena.usage.mapped
        engine.willing = False
        engine.capacity = MIB
        await node.until(lambda: len(partition.leaving) == 1)
        await asyncio.sleep(0.05)
        assert node.arena.usage.mapped == held
        engine.willing = True
        await node.until(lambda: node.arena.usage.mapped <= MIB)


async def test_a_newcomer_on_a_full_node_gets_a_share() -> None:
    async with running(Node(budget=32 * MIB)) as node:
        rich = node.attach(Engine(), name="rich")
        for _ in range(100):
            rich.pool.retire_slots(0, len(rich.space))
            rich.retry_at = 0.0
            node.manager.wake()
            await asyncio.sleep(0.002)
        assert rich.mapped > 28 * MIB
        poor = node.attach(Engine(), name="poor")
        await node.until(lambda: poor.slots > 0)
        assert rich.slots > 0
        assert node.arena.usage.mapped <= 32 * MIB


async def test_another_geometry_under_one_fingerprint_is_refused() -> None:
    async with running(Node(budget=16 * MIB)) as node:
        node.attach(Engine(), ranks=1)
        with pytest.raises(GeometryError, match="on 2"):
            node.attach(Engine(), ranks=2)


async def test_the_guard_makes_the_first_segment_smaller() -> None:
    async with running(Node(budget=GIB, limit=80 * MIB)) as node:
        partition = node.attach(Engine())
        await node.until(lambda: partition.slots > 0 and partition.refusal is not None)
        assert 12 * MIB < partition.mapped <= 16 * MIB
        refusal = node.manager.figures.refusal
        assert refusal is not None
        assert "/a" in refusal.limited_by


async def test_a_ceiling_under_pressure_is_met_at_once_and_named() -> None:
    async with running(Node(budget=64 * MIB)) as node:
        partition = node.attach(Engine())
        await node.until(lambda: partition.slots > 0)
        for _ in range(3):
            before = partition.mapped
            partition.pool.retire_slots(0, len(partition.space))
            await node.until(lambda before=before: partition.mapped > before)  # type: ignore[misc]
        node.manager.ceiling = 0
        await node.until(lambda: node.arena.usage.mapped == 0)
        await node.until(lambda: partition.refusal is not None)
        assert partition.refusal is not None
        assert partition.refusal.limited_by == "memory pressure"
        assert node.manager.figures.requested == 64 * MIB, "policy asks for what it asked"
        node.manager.ceiling = None
        partition.retry_at = 0.0
        await node.until(lambda: partition.slots > 0)
