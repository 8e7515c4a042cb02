"""Which chunk is in which pack, bytes, eviction order, what is not to be asked for. No I/O."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvoffload_agent.tiers.secondary import Key

# A read that took too long is not tried again at once; recomputing takes less than this.
NEGATIVE_SECONDS: Final = 60.0
# Bounds the memory of a disk that fails for hours: about 10 MB.
MAX_NEGATIVE: Final = 65_536


@dataclass(slots=True, eq=False, kw_only=True)
class Pack:
    """One file. ``bytes`` by st_blocks, ``data_at`` the offset of its first chunk.

    ``readers``: loads under way; it is not evicted meanwhile.
    """

    name: str
    folder: str
    bucket: str
    bytes: int
    data_at: int
    chunk_bytes: int
    keys: Sequence[Key]
    sums: Sequence[int]
    readers: int = 0
    number: int = 0
    """Given by the index."""


class Place(NamedTuple):
    """Where a chunk is: number ``at`` of a pack."""

    pack: Pack
    at: int


# A place as one number: chunks of a pack have so many bits, the number of the pack the others.
_CHUNK_BITS: Final = 32


class DiskIndex:
    """All packs of a disk, coldest first. ``folder`` names a partition."""

    def __init__(self) -> None:
        self._packs: OrderedDict[str, Pack] = OrderedDict()
        # Plain numbers: 100,000 objects more for the garbage collector to look at would hold the
        # event loop for 100 ms.
        self._chunks: dict[str, dict[Key, int]] = {}
        self._numbered: dict[int, Pack] = {}
        self._number = 0
        self._negative: OrderedDict[tuple[str, Key], float] = OrderedDict()
        self._reserved: Counter[str] = Counter()
        self._leaving: dict[str, Pack] = {}
        self._by_folder: dict[str, dict[str, Pack]] = {}
        self._folder_bytes: dict[str, int] = {}
        self._buckets: dict[str, str] = {}
        self._kept: Counter[str] = Counter()
        self._bytes = 0

    # --- figures -----------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Bytes of all files and directories, what is being written or removed included."""
        return self.kept + sum(pack.bytes for pack in self._leaving.values())

    @property
    def on_disk(self) -> int:
        """Bytes of directories and of files that are whole, those being removed included."""
        return self.used - sum(self._reserved.values())

    @property
    def chunks(self) -> int:
        """How many chunks can be found."""
        return sum(len(chunks) for chunks in self._chunks.values())

    @property
    def packs(self) -> int:
        """How many files there are to serve from."""
        return len(self._packs)

    def used_by(self, bucket: str) -> int:
        """Return the bytes that count against a bucket, those that leave not included."""
        return self._kept[bucket] + self._reserved[bucket]

    @property
    def kept(self) -> int:
        """Bytes that stay: ``used`` without what leaves."""
        folders = sum(self._folder_bytes.values())
        return self._bytes + folders + sum(self._reserved.values())

    # --- finding -----------------------------------------------------------------------------

    def find(self, folder: str, key: Key) -> Place | None:
        """Return where a chunk is, None if it is not here."""
        place = self._chunks.get(folder, {}).get(key)
        if place is None:
            return None
        return Place(self._numbered[place >> _CHUNK_BITS], place & ((1 << _CHUNK_BITS) - 1))

    def find_pack(self, name: str) -> Pack | None:
        """Return a pack that may be served from, None if it is not here."""
        return self._packs.get(name)

    def servable(self, folder: str, key: Key, *, now: float) -> bool:
        """Whether a chunk is here and the last attempt to read it is not too recent."""
        if self.find(folder, key) is None:
            return False
        until = self._negative.get((folder, key))
        return until is None or now >= until

    def touch(self, pack: Pack) -> None:
        """A pack was used."""
        if pack.name in self._packs:
            self._packs.move_to_end(pack.name)

    def refuse(self, folder: str, key: Key, *, now: float) -> None:
        """Do not offer a chunk for a while: reading it failed and may fail again."""
        self._negative[folder, key] = now + NEGATIVE_SECONDS
        self._negative.move_to_end((folder, key))
        while len(self._negative) > MAX_NEGATIVE:
            self._negative.popitem(last=False)

    # --- changing ----------------------------------------------------------------------------

    def reserve(self, bucket: str, size: int) -> None:
        """Count bytes that are about to be written."""
        self._reserved[bucket] += size

    def release(self, bucket: str, size: int) -> None:
        """What was reserved is written, or never will be."""
        self._reserved[bucket] -= size

    def add(self, pack: Pack, *, coldest: bool = False) -> None:
        """Take a file in. Chunks that are here already are found where they were."""
        assert pack.name not in self._packs
        pack.bucket = self._buckets.get(pack.folder, pack.bucket)
        self._packs[pack.name] = pack
        self._by_folder.setdefault(pack.folder, {})[pack.name] = pack
        self._number += 1
        pack.number = self._number
        self._numbered[pack.number] = pack
        if coldest:
            self._packs.move_to_end(pack.name, last=False)
        self._bytes += pack.bytes
        self._kept[pack.bucket] += pack.bytes
        chunks = self._chunks.setdefault(pack.folder, {})
        for place, key in enumerate(pack.keys, start=pack.number << _CHUNK_BITS):
            chunks.setdefault(key, place)
            self._negative.pop((pack.folder, key), None)

    def begin_removal(self, pack: Pack) -> bool:
        """Serve nothing of a pack any more; its bytes count until ``removed``.

        Returns whether it was here.
        """
        if self._packs.pop(pack.name, None) is None:
            return False
        siblings = self._by_folder[pack.folder]
        del siblings[pack.name]
        if not siblings:
            del self._by_folder[pack.folder]
        self._bytes -= pack.bytes
        self._kept[pack.bucket] -= pack.bytes
        self._leaving[pack.name] = pack
        # None where an earlier pack had every chunk of this one too, and left.
        chunks = self._chunks.get(pack.folder, {})
        for key in pack.keys:
            place = chunks.get(key)
            if place is not None and place >> _CHUNK_BITS == pack.number:
                del chunks[key]
        del self._numbered[pack.number]
        if not chunks:
            self._chunks.pop(pack.folder, None)
        return True

    def removed(self, name: str) -> None:
        """A file is gone."""
        self._leaving.pop(name, None)

    def measure(self, folder: str, size: int) -> None:
        """A partition's directory itself takes so many bytes now, 0: it is gone."""
        if size:
            self._folder_bytes[folder] = size
        else:
            self._folder_bytes.pop(folder, None)

    def charge(self, folder: str, bucket: str) -> None:
        """Count a partition's packs against a bucket, those that come later too."""
        if self._buckets.get(folder) == bucket:
            return
        self._buckets[folder] = bucket
        for pack in self.of(folder):
            self._kept[pack.bucket] -= pack.bytes
            self._kept[bucket] += pack.bytes
            pack.bucket = bucket

    def leave(self, folder: str) -> None:
        """Nobody uses a partition any more: its packs stay with the bucket that they have."""
        self._buckets.pop(folder, None)

    # --- eviction ----------------------------------------------------------------------------

    def victims(self, excess: int, *, matches: Callable[[Pack], bool] | None = None) -> list[Pack]:
        """Return the coldest packs, together at least ``excess`` bytes if there are so many.

        Packs that are read are passed over. ``matches``: which may be taken.
        """
        found: list[Pack] = []
        for pack in self._packs.values():
            if excess <= 0:
                break
            if pack.readers or (matches is not None and not matches(pack)):
                continue
            found.append(pack)
            excess -= pack.bytes
        return found

    def holds(self, folder: str) -> bool:
        """Whether there are packs of a partition to serve from."""
        return folder in self._by_folder

    def all(self) -> list[Pack]:
        """Return every pack, coldest first."""
        return list(self._packs.values())

    def of(self, folder: str) -> list[Pack]:
        """Return every pack of a partition."""
        return list(self._by_folder.get(folder, {}).values())
