"""One partition: the chunks that engines of one namespace and fingerprint share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvoffload_agent.memory.arena import Row
from kvoffload_agent.memory.guard import Refuse
from kvoffload_agent.memory.snapshot import GIB, MIB
from kvoffload_agent.partitions.shrink import Candidate, Holder
from kvoffload_agent.partitions.space import SlotSpace

# Populated in about 40 ms; an engine's first chunks need no more.
SEGMENT_BYTES: Final = 64 * MIB
# Later segments grow with the partition, so that a large one has some hundred descriptors, not
# thousands; a rank registers at most so much in one call (``datapath.md`` section 7).
GROWTH_SHARE: Final = 8
MAX_SEGMENT_BYTES: Final = 4 * GIB
# One slot in so many is kept free while the budget allows.
FREE_SHARE: Final = 4
# A segment of large rows holds at least a few, if the budget allows.
MIN_ROWS: Final = 8


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class PartitionKey:
    """Who shares: the sharing domain (a namespace) and the engine's fingerprint."""

    namespace: str
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.fingerprint[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """``row_bytes`` on each of ``ranks`` ranks; equal for all engines of a partition.

    ``layout``: whatever else decides what a key and a row mean.
    """

    row_bytes: int
    ranks: int
    layout: Hashable = None


class Pool(Protocol):
    """What a partition needs of the scheduler's slot pool."""

    def add_slots(self, count: int) -> None:
        """Append ``count`` slots, numbered on from the last one."""

    def retire_slots(self, low: int, high: int) -> int:
        """Empty slots ``[low, high)`` for good; return how many are still read or written."""

    def heats(self, spans: Sequence[tuple[int, int]]) -> list[float]:
        """Return how recently the chunks of each span of slots were used, on average."""

    @property
    def free_slots(self) -> int:
        """Slots that hold nothing."""

    def settle(self) -> bool:
        """Take in what lower tiers finished; return whether they still read or write slots."""


class Member(Protocol):
    """A session as its partition sees it."""

    bucket: str
    """Whose host memory its chunks count against."""
    capacity: int | None
    """Bytes that the bucket may use; None: the node's budget."""
    disk_capacity: int | None
    """Bytes of disk that the bucket may use, 0: none; None: nobody knows yet, so it uses none."""
    min_reuse_count: int
    """Offers of a chunk before it is stored, for the pool of a new partition."""

    def send_map(self, row: Row) -> None:
        """Send a row's segments to every connected worker."""

    def send_unmap(self, row: Row) -> None:
        """Ask every connected worker to give up a row's segments."""

    def has_mapped(self, row: Row) -> bool:
        """Whether every connected worker acknowledged this row."""

    def holds(self, row: Row) -> bool:
        """Whether a connected worker has, or may have, a segment of this row mapped."""

    @property
    def complete(self) -> bool:
        """Whether every worker is connected."""


class Partition:
    """Rows in use, rows on their way to the engines, and the sessions that share them."""

    def __init__(
        self, *, key: PartitionKey, geometry: Geometry, make_pool: Callable[[Partition], Pool]
    ) -> None:
        self.key = key
        self.geometry = geometry
        self.space = SlotSpace(row_bytes=geometry.row_bytes)
        self.rows: list[Row] = []
        """In use: every ready session mapped them."""
        self.pending: list[Row] = []
        """Sent to the engines, not acknowledged by all yet."""
        self.leaving: list[Row] = []
        """Never used again; closed once nothing is copied and no engine has them mapped."""
        self._spans: dict[int, tuple[int, int]] = {}
        self.members: set[Member] = set()
        self.refusal: Refuse | None = None
        """Why it could not grow at the last attempt."""
        self.retry_at = 0.0
        self.idle_since = 0.0
        self.bucket = ""
        self.capacity: int | None = None
        self.disk_bucket = ""
        self.disk_capacity: int | None = None
        self.pool = make_pool(self)

    @property
    def mapped(self) -> int:
        """Bytes of all its segments."""
        return sum(row.total for row in self.every_row())

    @property
    def kept(self) -> int:
        """Bytes of the segments that stay."""
        return sum(row.total for row in self.usable_rows())

    def usable_rows(self) -> Iterator[Row]:
        """Return every row that a worker must map, in use or not yet."""
        yield from self.rows
        yield from self.pending

    def every_row(self) -> Iterator[Row]:
        """Return every row whose memory is taken."""
        yield from self.usable_rows()
        yield from self.leaving

    def join(self, member: Member) -> None:
        """Add a session; its bucket is charged if the partition has no other."""
        self.members.add(member)
        self.charge()

    def leave(self, member: Member, *, now: float) -> None:
        """Remove a session; the last one leaves a warm cache behind."""
        self.members.discard(member)
        self.idle_since = now
        self.charge()

    def charge(self) -> None:
        """Charge the bucket of a session that is here; of the last one if none is.

        Sessions of one partition may be of pods that different policies won. Their chunks are
        shared and can't be told apart, so all count against the bucket that allows most.
        """
        if not self.members:
            return
        self._charge_disk()
        most = max(
            self.members,
            key=lambda member: (member.capacity is None, member.capacity or 0, member.bucket),
        )
        if (most.bucket, most.capacity) != (self.bucket, self.capacity):
            self.bucket, self.capacity = most.bucket, most.capacity
            self.refusal, self.retry_at = None, 0.0

    def _charge_disk(self) -> None:
        known = [member for member in self.members if member.disk_capacity is not None]
        if known:
            most = max(known, key=lambda member: (member.disk_capacity or 0, member.bucket))
            self.disk_bucket, self.disk_capacity = most.bucket, most.disk_capacity

    def ready(self, member: Member) -> bool:
        """Whether there are slots, and a session's workers can copy to and from each of them."""
        return (
            bool(self.rows) and member.complete and all(member.has_mapped(row) for row in self.rows)
        )

    def admit(self) -> int:
        """Put pending rows into use whose segments every ready session mapped; return slots."""
        admitted = 0
        waiting = []
        for row in self.pending:
            if self._reachable(row):
                self.rows.append(row)
                low = len(self.space)
                slots = self.space.extend(segment=row.segments[0].id, size=row.bytes)
                self._spans[row.segments[0].id] = (low, low + slots)
                self.pool.add_slots(slots)
                admitted += slots
            else:
                waiting.append(row)
        self.pending = waiting
        return admitted

    def holder(self) -> Holder:
        """Return what may leave, and how cold it is; a look at every slot."""
        heats = self.pool.heats([self._spans[row.segments[0].id] for row in self.rows])
        rows = [
            Candidate(bytes=row.total, heat=heat)
            for row, heat in zip(self.rows, heats, strict=True)
        ]
        return Holder(kept=self.kept, rows=rows)

    def give_up(self, numbers: Iterable[int]) -> None:
        """Let rows leave, by their place: their chunks are evicted, their slots never used again.

        No engine loses what it has mapped; a row is closed when all have unmapped it.
        """
        for number in sorted(numbers, reverse=True):
            self.leaving.append(self.rows.pop(number))

    def settle_leaving(self) -> list[Row]:
        """Drive leaving rows on; return those that nobody uses any more, to be closed."""
        gone = []
        for row in self.leaving:
            low, high = self._spans[row.segments[0].id]
            if self.pool.retire_slots(low, high):
                continue
            for member in self.members:
                member.send_unmap(row)
            if not any(member.holds(row) for member in self.members):
                gone.append(row)
        self.leaving = [row for row in self.leaving if row not in gone]
        return gone

    def _reachable(self, row: Row) -> bool:
        """Whether no session that makes plans lacks a row; the first row waits for one."""
        serving = [member for member in self.members if member.complete]
        if not self.rows:
            return any(member.has_mapped(row) for member in serving)
        return all(member.has_mapped(row) for member in serving if self.ready(member))

    def segment_bytes(self, *, budget: int) -> int:
        """Return the size of the next segment of one rank.

        ``budget``: bytes that the whole node may use; small ones are not spent on the first comer.
        """
        size = self.geometry.row_bytes
        share = budget // GROWTH_SHARE // self.geometry.ranks
        grown = self.kept // self.geometry.ranks // GROWTH_SHARE
        wanted = max(SEGMENT_BYTES, MIN_ROWS * size, grown)
        rows = max(1, min(wanted, share, MAX_SEGMENT_BYTES) // size)
        return rows * size

    def wants_more(self, *, now: float, budget: int) -> bool:
        """Whether free slots run low and nothing is on its way.

        A segment needs some tens of milliseconds to be had, in which an engine stores many chunks;
        without a free slot each of them evicts one that could have stayed. So a whole segment is
        kept free, and in a large partition a share of it, as long as the budget has it.
        """
        if not self.members or self.pending or self.leaving or now < self.retry_at:
            return False
        if self.capacity == 0:
            # Its pods have no entry yet, or may keep nothing: no refusal, nothing is asked for.
            return False
        segment = self.segment_bytes(budget=budget) // self.geometry.row_bytes
        return not self.rows or self.pool.free_slots < max(segment, self.slots // FREE_SHARE)

    @property
    def slots(self) -> int:
        """Slots in use or free, those that left not counted."""
        return sum(row.bytes // self.geometry.row_bytes for row in self.rows)
