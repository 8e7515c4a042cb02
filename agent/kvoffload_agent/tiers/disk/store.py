"""One disk of an agent, shared by all partitions: room, threads, deadlines, adoption."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from kvoffload_agent.tiers.backpressure import BackPressure
from kvoffload_agent.tiers.disk import layout
from kvoffload_agent.tiers.disk.adopt import BATCH_PACKS, Found, adopt, survey
from kvoffload_agent.tiers.disk.directory import DiskError
from kvoffload_agent.tiers.disk.index import DiskIndex, Pack
from kvoffload_agent.tiers.disk.io import Files
from kvoffload_agent.tiers.disk.layout import DamagedError
from kvoffload_agent.tiers.disk.removal import Removals
from kvoffload_agent.tiers.disk.transfers import Transfers
from kvoffload_agent.tiers.disk.workers import Workers

# An agent that is being replaced lets go of the directory within its grace period of some seconds.
OPEN_SECONDS: Final = 2.0
# How soon a deadline, a changed capacity or a filling disk is seen.
LOOK_SECONDS: Final = 0.5

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counters:
    """Since the agent started. Each counts chunks unless it says otherwise."""

    stored: int = 0
    loaded: int = 0
    adopted: int = 0
    evicted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    """Files that were not what they should be, by reason; they were removed."""
    not_stored: Counter[str] = field(default_factory=Counter)
    """By reason."""
    not_loaded: Counter[str] = field(default_factory=Counter)
    """By reason."""


class DiskStore:
    """Owns the index; every method belongs to the event loop's thread and none of them waits.

    ``budget``: bytes that all partitions may use together now; None: no bound but the file
    system's. ``clock``: monotonic seconds. ``started_ns`` names this life of the agent in files.
    """

    def __init__(
        self,
        files: Files,
        *,
        budget: Callable[[], int | None],
        clock: Callable[[], float],
        started_ns: int,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = files
        self.clock = clock
        self.index = DiskIndex()
        self.counters = Counters()
        self.transfers = Transfers(clock=clock, woken=woken)
        self.pressure = BackPressure()
        self.state = "opening"
        """``opening``, ``adopting``, ``ready``, or why it cannot be used."""
        self.ready = False
        self._budget = budget
        self._started_ns = started_ns
        self._packs = 0
        self._room = 0
        self._unadopted = 0
        self._looking = False
        self._found: list[Found] = []
        self._forgotten: set[str] = set()
        self._keeper = Workers(name="disk-keep", threads=1, woken=woken)
        self.removals = Removals(files=files, index=self.index, keeper=self._keeper, clock=clock)

    @property
    def used(self) -> int:
        """Bytes of all files, those that are not adopted yet included."""
        return self.index.used + self._unadopted

    @property
    def capacity(self) -> int:
        """Bytes that ``used`` may reach, as far as is known now."""
        room = max(0, self._room + self._unadopted)
        budget = self._budget()
        return room if budget is None else max(0, min(room, budget))

    @property
    def available(self) -> int:
        """Bytes that the file system has left beyond its reserve, as of the last look."""
        return max(0, self._room - self.index.on_disk)

    @property
    def limited_by(self) -> str:
        """What keeps loads or stores from it, ``""`` if nothing does."""
        if not self.ready:
            return self.state
        for what, breaker in (("loads", self.transfers.loads), ("stores", self.transfers.stores)):
            if breaker.reason:
                return f"no {what}: {breaker.reason}"
        return ""

    # --- room --------------------------------------------------------------------------------

    def limit(self) -> int:
        """Return the bytes that may be used beside files that are not adopted yet."""
        return max(0, self.capacity - self._unadopted)

    def make_room(self, bucket: str, capacity: int, size: int) -> list[Pack] | None:
        """Reserve ``size`` bytes; returns packs to remove first, None if there is no room."""
        index = self.index
        victims: list[Pack] = []
        if size <= capacity and size <= self.limit():
            own = partial(_of_bucket, bucket)
            victims = index.victims(index.used_by(bucket) + size - capacity, matches=own)
            rest = index.kept - sum(pack.bytes for pack in victims) + size - self.limit()
            if rest > 0 and self._unadopted:
                # What is adopted already is newer than what is not, and that can't be chosen yet.
                return None
            taken = set(victims)
            victims += index.victims(rest, matches=lambda pack: pack not in taken)
        gained = sum(pack.bytes for pack in victims)
        in_bucket = sum(pack.bytes for pack in victims if pack.bucket == bucket)
        # What leaves already and is not gone yet still takes space: the store is not worth a wait.
        if (
            index.used - gained + size > self.limit()
            # Nobody knows yet whose the files are that are not adopted.
            or index.used_by(bucket) - in_bucket + size + self._unadopted > capacity
        ):
            return None
        self._begin_removal(victims)
        index.reserve(bucket, size)
        return victims

    def _begin_removal(self, packs: Sequence[Pack]) -> None:
        for pack in packs:
            self.counters.evicted += len(pack.keys)
            self.index.begin_removal(pack)

    def remove(self, packs: Sequence[Pack]) -> None:
        """Serve packs no more, and remove their files."""
        self.removals.begin(packs)

    def pack_name(self) -> str:
        """Return the name of a new pack."""
        self._packs += 1
        return layout.pack_name(started_ns=self._started_ns, number=self._packs)

    # --- files -------------------------------------------------------------------------------

    def poll(self) -> None:
        """Take in what threads ended, and end what took too long."""
        self.transfers.poll()
        self._keeper.results()

    def damaged(self, pack: Pack, error: BaseException) -> None:
        """A file is not what was written: count it, remove it."""
        reason = error.reason if isinstance(error, DamagedError) else "vanished"
        if self.index.find_pack(pack.name) is not None:
            self.counters.rejected[reason] += 1
            _log.warning("file rejected", pack=pack.name, reason=reason, detail=str(error))
        self.remove([pack])

    # --- forgetting --------------------------------------------------------------------------

    def forget(self, folder: str) -> None:
        """Remove every chunk of a partition, also those that are not adopted yet."""
        self.remove(self.index.of(folder))
        if not self.ready or self.state == "adopting":
            self._forgotten.add(folder)

    # --- time --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Open, adopt and keep within limits, until cancelled."""
        while not self.ready:
            try:
                await self.open()
            except (DiskError, OSError) as error:
                if self.state != str(error):
                    self.state = str(error)
                    _log.error("the disk is not used", reason=self.state)
                await asyncio.sleep(OPEN_SECONDS)
        await self.adopt()
        while True:
            self.tick()
            await asyncio.sleep(LOOK_SECONDS)

    async def open(self) -> None:
        """Take the directory, and look at what lies there; stores may begin after that.

        Raises:
            DiskError, OSError: it cannot be used.
        """
        await self._in_thread(self.files.open)
        try:
            self._room = await self._in_thread(self.files.available)
            found = await self._in_thread(partial(survey, self.files))
        except OSError:
            self.files.close()  # else the next attempt would find it locked
            raise
        self.counters.rejected += found.rejected
        for folder, size in found.folders.items():
            self.index.measure(folder, size)
            self._room += size
        self._found = found.packs
        self._unadopted = sum(item.bytes for item in self._found)
        self.ready = True
        self.state = "adopting"

    async def adopt(self) -> None:
        """Take in what lies there, while engines are served."""
        for start in range(0, len(self._found), BATCH_PACKS):
            items = self._found[start : start + BATCH_PACKS]
            batch = await self._in_thread(partial(adopt, self.files, items))
            self.counters.rejected += batch.rejected
            self._unadopted -= sum(item.bytes for item in items)
            self._take_in(batch.packs)
            self.tick()
        self._found = []
        self._forgotten.clear()
        self.state = "ready"
        _log.info(
            "disk adopted",
            chunks=self.counters.adopted,
            rejected=dict(self.counters.rejected),
        )

    def _take_in(self, packs: Sequence[Pack]) -> None:
        for pack in packs:
            self.index.add(pack, coldest=True)
            self._room += pack.bytes
        self.counters.adopted += sum(
            len(pack.keys) for pack in packs if pack.folder not in self._forgotten
        )
        self.remove([pack for pack in packs if pack.folder in self._forgotten])

    def tick(self) -> None:
        """Look at deadlines and limits."""
        self.poll()
        self.removals.retry()
        # Packs are adopted newest first: while older ones are not, what is known is not trimmed in
        # their place.
        self.trim(self.index.kept - self.capacity)
        if not self._looking:
            self._looking = True
            self._keeper.submit(self.files.available, self._looked)

    def trim(self, excess: int, *, bucket: str | None = None) -> None:
        """Evict so many bytes, of one bucket or of all."""
        if excess > 0:
            matches = None if bucket is None else partial(_of_bucket, bucket)
            packs = self.index.victims(excess, matches=matches)
            self.counters.evicted += sum(len(pack.keys) for pack in packs)
            self.remove(packs)

    def close(self) -> None:
        """End every transfer at the end of the agent; files stay."""
        self.transfers.close()
        self._keeper.close()

    def _looked(self, available: int | None, error: BaseException | None) -> None:
        self._looking = False
        if error is None and available is not None:
            # What is written later is in both sides of a comparison with this, so it stays true.
            self._room = self.index.on_disk + available

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Run ``work`` in the keeper's thread; engines are served meanwhile without it."""
        ended: list[tuple[Any, BaseException | None]] = []
        self._keeper.submit(work, lambda value, error: ended.append((value, error)))
        while not ended:
            self.poll()
            # Adoption of 3,000 batches waits some seconds in all; a hanging disk costs nothing.
            await asyncio.sleep(0.001 if self.ready else 0.01)
        [(value, error)] = ended
        if error is not None:
            raise error
        return value


def _of_bucket(bucket: str, pack: Pack) -> bool:
    return pack.bucket == bucket
