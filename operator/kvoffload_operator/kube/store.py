"""The objects of one collection as last seen, whoever saw them.

Three sources may report the same object: a list, a watch, and the answer to a write of our own.
The newer resource version wins, so their order does not matter.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, order=True)
class ObjectKey:
    """Namespace (empty for cluster-scoped objects) and name."""

    namespace: str
    name: str


@dataclass(frozen=True, kw_only=True)
class _Stored(Generic[T]):
    value: T
    version: int


class Store(Generic[T]):
    """What ``parse`` returns of each object; only a change of that is reported.

    Args:
        parse: Returns what to keep of an object.
        changed: Called with key, old and new value (``None`` for absent).
    """

    def __init__(
        self,
        *,
        parse: Callable[[Mapping[str, Any]], T],
        changed: Callable[[ObjectKey, T | None, T | None], None],
    ) -> None:
        self._parse = parse
        self._changed = changed
        self._stored: dict[ObjectKey, _Stored[T]] = {}
        self._dropped: dict[ObjectKey, int] = {}
        self._progress = 0

    def get(self, *, name: str, namespace: str = "") -> T | None:
        """Return what is kept of one object, or ``None``."""
        stored = self._stored.get(ObjectKey(namespace=namespace, name=name))
        return stored.value if stored else None

    def items(self) -> Iterator[tuple[ObjectKey, T]]:
        """Yield every key and value, of one moment."""
        yield from [(key, stored.value) for key, stored in self._stored.items()]

    def values(self) -> list[T]:
        """Return every value, of one moment."""
        return [stored.value for stored in self._stored.values()]

    def all_keys(self) -> list[ObjectKey]:
        """Return every key, of one moment."""
        return list(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, item: Mapping[str, Any]) -> None:
        """Keep an object that a list or a watch reported, unless a newer one is kept."""
        key = key_of(item)
        version = number_of(item["metadata"]["resourceVersion"])
        old = self._stored.get(key)
        if version <= self._dropped.get(key, -1) or (old is not None and old.version > version):
            return
        new = _Stored(value=self._parse(item), version=version)
        self._stored[key] = new
        if old is None or old.value != new.value:
            self._changed(key, old.value if old else None, new.value)

    def drop(self, key: ObjectKey, *, version: str = "") -> None:
        """Forget an object that was reported as deleted.

        Args:
            key: Of the object.
            version: Of its deletion; needed where a list may be under way at the same time.
        """
        if version:
            self._dropped[key] = number_of(version)
        old = self._stored.pop(key, None)
        if old is not None:
            self._changed(key, old.value, None)

    def passed(self, version: str) -> None:
        """Note that a watch has reported everything up to this version."""
        self._progress = max(self._progress, number_of(version))

    def absorb(self, item: Mapping[str, Any]) -> None:
        """Keep the answer to a write of our own, so that the next decision sees it at once."""
        # What the watch has passed already may have been deleted since.
        if number_of(item["metadata"]["resourceVersion"]) > self._progress:
            self.put(item)

    def replace(self, items: Iterable[Mapping[str, Any]], *, version: str) -> None:
        """Take a complete list, and drop what it lacks.

        Args:
            items: Every object of the collection.
            version: Resource version of the list; what is newer stays.
        """
        listed = number_of(version)
        by_key = {key_of(item): item for item in items}
        for key in [key for key in self._stored if key not in by_key]:
            if self._stored[key].version <= listed:
                self.drop(key)
        for item in by_key.values():
            self.put(item)
        # A later list cannot hold what was deleted before this one.
        self._dropped = {key: at for key, at in self._dropped.items() if at > listed}
        self.passed(version)


def key_of(item: Mapping[str, Any]) -> ObjectKey:
    """Return the key of an object."""
    metadata = item["metadata"]
    return ObjectKey(namespace=metadata.get("namespace", ""), name=metadata["name"])


def number_of(version: str) -> int:
    """Return a resource version as a number, 0 if it is none.

    Versions of one resource compare as decimal numbers
    (API conventions since Kubernetes 1.35; with etcd it was always so).
    """
    return int(version) if version.isdecimal() else 0
