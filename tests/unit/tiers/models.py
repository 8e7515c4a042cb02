"""Eviction policies as dicts and sorts, key by key: what the arrays have to equal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

Key = tuple[int, bytes]
# Keys of one group with the ends of their chunks, None where they are not known.
Run = tuple[int, list[tuple[bytes, int | None]]]


@dataclass(eq=False)
class Asker:
    """A request. ``observed``: key → position, in order of observation."""

    own: int | None = None
    observed: dict[Key, int | None] = field(default_factory=dict)
    inserted: set[Key] = field(default_factory=set)
    reused: set[Key] = field(default_factory=set)
    missed: set[Key] = field(default_factory=set)

    def last_to_first(self) -> list[Key]:
        """Return what was observed in the order in which it should leave."""
        if all(at is not None for at in self.observed.values()):
            return sorted(self.observed, key=lambda key: (self.observed[key], key[0]))[::-1]
        keys = []
        for group in sorted({key[0] for key in self.observed}):
            mine = [key for key in self.observed if key[0] == group]
            if all(self.observed[key] is not None for key in mine):
                mine.sort(key=lambda key: self.observed[key] or 0)
            keys += mine
        return keys[::-1]


class LruModel:
    """Ranks (a, b); the smallest leaves first (``scheduler.md`` 6.5)."""

    def __init__(self) -> None:
        self.ranks: dict[Key, tuple[int, int]] = {}
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    def _own(self, asker: Asker) -> int:
        if asker.own is None:
            asker.own = self._next()
        return asker.own

    def observe(self, asker: Asker, key: Key, position: int | None, *, capacity: int) -> None:
        del capacity
        own = self._own(asker)
        if key in asker.observed:
            return
        asker.observed[key] = position
        if position is not None and key in self.ranks:
            self.ranks[key] = max(self.ranks[key], (own, -position))

    def insert(self, asker: Asker, key: Key, position: int | None) -> None:
        own = self._own(asker)
        self.ranks[key] = (self._next(), 0) if position is None else (own, -position)

    def victims(self, count: int, evictable: Collection[Key]) -> list[Key]:
        return sorted(evictable, key=lambda key: (self.ranks[key], key[1], key[0]))[:count]

    def evict(self, keys: Sequence[Key], *, capacity: int) -> None:
        del capacity
        for key in keys:
            del self.ranks[key]

    def drop(self, key: Key) -> None:
        del self.ranks[key]

    def finish(self, asker: Asker) -> None:
        for key in asker.last_to_first():
            if key in self.ranks:
                self.ranks[key] = (self._next(), 0)


class ArcModel:
    """T1, T2, B1 and B2 as dicts, whose first key is the next to leave (``scheduler.md`` 6.5)."""

    def __init__(self) -> None:
        self.recent: dict[Key, None] = {}
        self.frequent: dict[Key, None] = {}
        self.recent_ghosts: dict[Key, None] = {}
        self.frequent_ghosts: dict[Key, None] = {}
        self.target = 0.0

    def observe(self, asker: Asker, key: Key, position: int | None, *, capacity: int) -> None:
        asker.observed.setdefault(key, position)
        if key in self.recent or key in self.frequent:
            if key not in asker.inserted:
                asker.reused.add(key)
        elif key not in asker.missed:
            asker.missed.add(key)
            self._miss(key, capacity)

    def _miss(self, key: Key, capacity: int) -> None:
        one, two = self.recent_ghosts, self.frequent_ghosts
        if key in one:
            self.target = min(self.target + max(1.0, len(two) / len(one)), float(capacity))
            _to_end(one, key)
        elif key in two:
            self.target = max(self.target - max(1.0, len(one) / len(two)), 0.0)
            _to_end(two, key)

    def insert(self, asker: Asker, key: Key, position: int | None) -> None:
        del position
        asker.inserted.add(key)
        self.recent[key] = None
        self.recent_ghosts.pop(key, None)
        self.frequent_ghosts.pop(key, None)

    def victims(self, count: int, evictable: Collection[Key]) -> list[Key]:
        one = [key for key in self.recent if key in evictable]
        two = [key for key in self.frequent if key in evictable]
        size, chosen = len(self.recent), []
        while len(chosen) < count and (one or two):
            if one and (size >= int(self.target) or not two):
                chosen.append(one.pop(0))
                size -= 1
            else:
                chosen.append(two.pop(0))
        return chosen

    def evict(self, keys: Sequence[Key], *, capacity: int) -> None:
        for key in keys:
            ghosts = self.recent_ghosts if key in self.recent else self.frequent_ghosts
            ghosts[key] = None
            self.drop(key)
        for ghosts in (self.recent_ghosts, self.frequent_ghosts):
            while len(ghosts) > capacity:
                del ghosts[next(iter(ghosts))]

    def drop(self, key: Key) -> None:
        self.recent.pop(key, None)
        self.frequent.pop(key, None)

    def finish(self, asker: Asker) -> None:
        for key in asker.last_to_first():
            if key in asker.reused and key in self.recent:
                del self.recent[key]
                self.frequent[key] = None
            elif key in asker.reused or key in asker.inserted:
                for table in (self.recent, self.frequent):
                    if key in table:
                        _to_end(table, key)


def _to_end(table: dict[Key, None], key: Key) -> None:
    del table[key]
    table[key] = None
