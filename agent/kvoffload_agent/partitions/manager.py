"""All partitions of a node: who may grow, what is closed for it, and the task that grows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from kvoffload_agent.memory.arena import Arena
from kvoffload_agent.memory.guard import POLICY_BUDGET, Refuse
from kvoffload_agent.partitions.figures import Figures
from kvoffload_agent.partitions.partition import (
    Geometry,
    Member,
    Partition,
    PartitionKey,
    Pool,
)
from kvoffload_agent.partitions.shrink import plan

# A refused growth is asked for again: other processes give memory back, limits are raised.
RETRY_SECONDS: Final = 5.0
# A partition whose rows are all full wants more although nobody asks it: look once in a while.
LOOK_SECONDS: Final = 0.25

# ``limited_by`` where others on the node or in the cgroup need the memory.
PRESSURE: Final = "memory pressure"

_log = structlog.get_logger(__name__)


class GeometryError(Exception):
    """An engine's geometry differs from that of its partition; its fingerprint must be wrong."""


class PartitionManager:
    """Owns partitions; sessions attach to them. All methods belong to the event loop.

    ``budget`` returns the bytes of host memory that this node's agent may use now.
    """

    def __init__(
        self,
        *,
        arena: Arena,
        budget: Callable[[], int],
        make_pool: Callable[[Partition, int], Pool],
        clock: Callable[[], float],
    ) -> None:
        self._arena = arena
        self._policy = budget
        self.ceiling: int | None = None
        """Bytes that all segments may have together while memory is short; None: no bound."""
        self._make_pool = make_pool
        self._clock = clock
        self._partitions: dict[PartitionKey, Partition] = {}
        self._wake = asyncio.Event()

    @property
    def partitions(self) -> list[Partition]:
        """All partitions, also those whose engines have left."""
        return list(self._partitions.values())

    @property
    def figures(self) -> Figures:
        """Return the bytes as status and metrics show them."""
        usage = self._arena.usage
        refusals = [part.refusal for part in self._partitions.values() if part.refusal]
        return Figures(
            # What policy no longer asks for and engines have not given back yet counts as asked.
            requested=max(usage.mapped, self._requested()),
            mapped=usage.mapped,
            populated=usage.populated,
            refusal=refusals[0] if refusals else None,
        )

    def attach(self, member: Member, *, key: PartitionKey, geometry: Geometry) -> Partition:
        """Join a session to its partition, made if it is the first.

        Raises:
            GeometryError: engines of this fingerprint have another geometry.
        """
        partition = self._partitions.get(key)
        if partition is None:
            partition = Partition(
                key=key,
                geometry=geometry,
                make_pool=lambda made: self._make_pool(made, member.min_reuse_count),
            )
            self._partitions[key] = partition
        elif partition.geometry != geometry:
            raise GeometryError(
                f"partition {key} has rows of {partition.geometry.row_bytes} bytes on"
                f" {partition.geometry.ranks} ranks, this engine {geometry.row_bytes} bytes on"
                f" {geometry.ranks}, or their blocks and hashes differ"
            )
        partition.join(member)
        partition.retry_at = 0.0
        self.wake()
        return partition

    def detach(self, member: Member, partition: Partition) -> None:
        """Take a session off its partition, after its last worker left; its chunks stay."""
        partition.leave(member, now=self._clock())
        partition.admit()
        busy = partition.pool.settle()
        if not partition.members and not busy and not any(partition.every_row()):
            # Nothing is kept for the next engine, and fingerprints are an engine's to choose.
            self.close(partition)
        self.wake()

    def admit(self, partition: Partition) -> None:
        """Put rows into use that the engines have mapped, and look whether more is wanted."""
        if partition.admit():
            self.consider(partition)

    def consider(self, partition: Partition) -> None:
        """Wake the grower if this partition wants more; called after decisions that store."""
        if partition.wants_more(now=self._clock(), budget=self._budget()):
            self.wake()

    def wake(self) -> None:
        """Let the grower look at everything again: policy, budget or sessions changed."""
        self._wake.set()

    async def run(self) -> None:
        """Grow partitions one at a time, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it swallows a cancellation that comes with the event.
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            self._close_excess()
            self._give_up_excess()
            self._settle()
            for partition in self.partitions:
                partition.charge()
                if partition.wants_more(now=self._clock(), budget=self._budget()):
                    await self._grow(partition)

    def close(self, partition: Partition) -> None:
        """Forget a partition that nobody uses and give its memory back."""
        assert not partition.members, "its engines have it mapped"
        assert not partition.pool.settle(), "a tier reads or writes its memory"
        del self._partitions[partition.key]
        for row in partition.every_row():
            self._arena.close(row)
        _log.info("idle partition closed", partition=str(partition.key))

    def _budget(self) -> int:
        """Return the bytes that all segments may have: policy's, or less under pressure."""
        policy = self._policy()
        return policy if self.ceiling is None else min(policy, self.ceiling)

    # --- growth ----------------------------------------------------------------------------

    async def _grow(self, partition: Partition) -> None:
        budget = self._budget()
        size = partition.segment_bytes(budget=budget)
        self._make_room(partition, size * partition.geometry.ranks)
        outcome = await self._arena.grow(
            ranks=partition.geometry.ranks,
            row_bytes=partition.geometry.row_bytes,
            segment_bytes=size,
            budget=self._allowed(partition),
        )
        if isinstance(outcome, Refuse):
            outcome = self._named(outcome)
            partition.retry_at = self._clock() + RETRY_SECONDS
            if outcome.limited_by in (POLICY_BUDGET, PRESSURE) and partition.rows:
                # A cache that has grown to its budget is as it should be.
                partition.refusal = None
                return
            if partition.refusal != outcome:
                _log.info("growth refused", partition=str(partition.key), reason=outcome.reason)
            partition.refusal = outcome
            return
        partition.refusal = None
        if self._partitions.get(partition.key) is not partition or not partition.members:
            # Its engines left while it grew; what others could use is not kept for nobody.
            self._arena.close(outcome)
            return
        partition.pending.append(outcome)
        for member in list(partition.members):
            member.send_map(outcome)
        self.admit(partition)

    def _named(self, refusal: Refuse) -> Refuse:
        """Name pressure, not policy, where it is what is short."""
        if refusal.limited_by != POLICY_BUDGET or self._budget() == self._policy():
            return refusal
        return replace(
            refusal,
            reason=f"memory is short: all may have {self.ceiling} bytes until it is free again",
            limited_by=PRESSURE,
        )

    def _allowed(self, partition: Partition) -> int:
        """Return the bytes that this partition may still take under policy."""
        node = self._budget() - self._arena.usage.mapped
        if partition.capacity is None:
            return node
        return min(node, partition.capacity - self._in_bucket(partition.bucket))

    def _in_bucket(self, bucket: str) -> int:
        return sum(part.mapped for part in self._partitions.values() if part.bucket == bucket)

    def _make_room(self, partition: Partition, wanted: int) -> None:
        """Close idle partitions, coldest first, while this one lacks bytes that it may have."""
        if not self._could_have(partition, wanted):
            return
        for idle in self._idle():
            if self._allowed(partition) >= wanted:
                return
            same_bucket = idle.bucket == partition.bucket
            node_is_short = self._budget() - self._arena.usage.mapped < wanted
            if idle is not partition and (same_bucket or node_is_short):
                self.close(idle)

    def _could_have(self, partition: Partition, wanted: int) -> bool:
        """Whether closing idle partitions would do: one that never fits must not empty the node."""
        idle = self._idle()
        node = self._budget() - self._arena.usage.mapped + sum(part.mapped for part in idle)
        if partition.capacity is None:
            return node >= wanted
        same = sum(part.mapped for part in idle if part.bucket == partition.bucket)
        bucket = partition.capacity - self._in_bucket(partition.bucket) + same
        return min(node, bucket) >= wanted

    def _close_excess(self) -> None:
        """Close idle partitions while the node's budget or a bucket's capacity is exceeded."""
        for idle in self._idle():
            over_node = self._arena.usage.mapped > self._budget()
            over_bucket = idle.capacity is not None and self._in_bucket(idle.bucket) > idle.capacity
            if over_node or over_bucket:
                self.close(idle)

    def _give_up_excess(self) -> None:
        """Take rows from partitions in use: over their bucket, over the node, over their share."""
        active = [part for part in self._partitions.values() if part.members]
        for part in active:
            of_bucket = [other for other in active if other.bucket == part.bucket]
            kept = sum(other.kept for other in of_bucket)
            if part.capacity is not None and kept > part.capacity:
                self._give_up(of_bucket, kept - part.capacity, reason="capacity of the policy")
        if (excess := self._kept() - self._budget()) > 0:
            reason = "budget of the node" if self._budget() == self._policy() else PRESSURE
            # All at once: the kernel does not wait for one segment after the other.
            self._give_up(active, excess, reason=reason)
        elif (starved := self._starved(active)) is not None:
            largest = max(active, key=_kept)
            if largest.kept > self._budget() // len(active) and not largest.leaving:
                self._give_up([largest], 1, reason=f"{starved.key} has nothing")

    def _starved(self, active: list[Partition]) -> Partition | None:
        """Return a partition that its policy would let have a row and the full node does not."""
        node = self._budget() - self._arena.usage.mapped
        for part in active:
            row = part.geometry.row_bytes * part.geometry.ranks
            may = part.capacity is None or part.capacity - self._in_bucket(part.bucket) >= row
            if not part.rows and not part.pending and may and node < row:
                part.retry_at = 0.0
                return part
        return None

    def _kept(self) -> int:
        return sum(part.kept for part in self._partitions.values())

    def _give_up(self, partitions: list[Partition], excess: int, *, reason: str) -> None:
        """Let rows leave that have at least ``excess`` bytes, the coldest of the largest first."""
        leaving = plan([partition.holder() for partition in partitions], excess)
        for number, partition in enumerate(partitions):
            rows = [row for holder, row in leaving if holder == number]
            if rows:
                partition.give_up(rows)
                _log.info(
                    "segments are given up",
                    partition=str(partition.key),
                    rows=len(rows),
                    reason=reason,
                )

    def _settle(self) -> None:
        for partition in self._partitions.values():
            for row in partition.settle_leaving():
                self._arena.close(row)

    def _idle(self) -> list[Partition]:
        """Return the partitions that may be closed, coldest first: nobody uses their memory."""
        idle = [
            part
            for part in self._partitions.values()
            if not part.members and not part.pool.settle()
        ]
        return sorted(idle, key=lambda part: part.idle_since)

    def _requested(self) -> int:
        """Return what the policies of the present partitions ask for, within the node's budget."""
        budget = self._policy()
        buckets: dict[str, int] = {}
        for part in self._partitions.values():
            wanted = budget if part.capacity is None else part.capacity
            buckets[part.bucket] = max(buckets.get(part.bucket, 0), wanted)
        return min(budget, sum(buckets.values()))


def _kept(partition: Partition) -> int:
    return partition.kept
