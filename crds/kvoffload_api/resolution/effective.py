"""The effective block of a pod or request: every value, and who set it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvoffload_api.hashing import config_hash
from kvoffload_api.models.node import Entry
from kvoffload_api.models.offload import Tier
from kvoffload_api.models.status import EffectiveVariant
from kvoffload_api.models.types import RequestOverride, StoreScope
from kvoffload_api.names import BUILT_IN, NO_ENTRY, NOBODY, ConfigHash, Source
from kvoffload_api.resolution import fields
from kvoffload_api.resolution.fields import FIELDS, Value, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSource:
    """Who set one field.

    Attributes:
        source: A policy, ``#defaults``, ``#limits`` or ``#nodeBudget`` of a cluster policy,
            ``built-in``, ``request`` or ``no-entry``.
        clamped_from: The value before it was cut, as text; empty if it was not.
        clamped_source: Who had set that value; empty if it was not cut.
    """

    source: Source
    clamped_from: str = ""
    clamped_source: Source = NOBODY


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveLoad:
    """What may be loaded; ``max_tokens`` None = uncapped, ``tiers`` None = all.

    A ``min_tokens`` above ``max_tokens`` loads nothing.
    """

    max_tokens: int | None
    min_tokens: int
    timeout_seconds: int
    tiers: tuple[Tier, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveStore:
    """What may be stored; ``max_tokens`` None = uncapped, ``tiers`` None = all."""

    max_tokens: int | None
    scope: StoreScope
    min_reuse_count: int
    tiers: tuple[Tier, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """Values in force, each with exactly one source.

    Attributes:
        load: What may be loaded.
        store: What may be stored.
        host_memory_capacity: Bytes on this node for the bucket; None = the node's budget.
        local_disk_capacity: Bytes on this node for the bucket; None = no disk tier.
        request_override: Whether a request may tighten this.
        source: The policy that won the pod, else the first cluster policy with defaults, else
            ``built-in``.
        bucket: Whose bytes count together: the winning policy, or ``Namespace/name``.
        provenance: One source for each field of ``FIELDS``, in that order.
    """

    load: EffectiveLoad
    store: EffectiveStore
    host_memory_capacity: int | None
    local_disk_capacity: int | None
    request_override: RequestOverride
    source: Source
    bucket: Source
    provenance: tuple[tuple[str, FieldSource], ...]

    def source_of(self, field: str) -> Source:
        """Return who set a field such as ``load.maxTokens``.

        Raises:
            KeyError: There is no such field.
        """
        return self.field_source(field).source

    def field_source(self, field: str) -> FieldSource:
        """Return who set a field, and what it was cut from.

        Raises:
            KeyError: There is no such field.
        """
        for path, source in self.provenance:
            if path == field:
                return source
        raise KeyError(field)

    def value(self, field: str) -> Value:
        """Return a field's value by its path.

        Raises:
            KeyError: There is no such field.
        """
        return self.values()[field]

    def values(self) -> dict[str, Value]:
        """Return all values by path, in the order of ``FIELDS``."""
        return {
            fields.LOAD_MAX_TOKENS: self.load.max_tokens,
            fields.LOAD_MIN_TOKENS: self.load.min_tokens,
            fields.LOAD_TIMEOUT_SECONDS: self.load.timeout_seconds,
            fields.LOAD_TIERS: self.load.tiers,
            fields.STORE_MAX_TOKENS: self.store.max_tokens,
            fields.STORE_SCOPE: self.store.scope,
            fields.STORE_MIN_REUSE_COUNT: self.store.min_reuse_count,
            fields.STORE_TIERS: self.store.tiers,
            fields.HOST_MEMORY_CAPACITY: self.host_memory_capacity,
            fields.LOCAL_DISK_CAPACITY: self.local_disk_capacity,
        }

    @property
    def stores_nothing(self) -> bool:
        """Whether no token may be stored."""
        return self.store.max_tokens == 0

    @property
    def loads_nothing(self) -> bool:
        """Whether no token may be loaded, whatever the hit."""
        cap = self.load.max_tokens
        return cap is not None and (cap == 0 or cap < self.load.min_tokens)

    @property
    def hash(self) -> ConfigHash:
        """The hash of this value's entry."""
        return config_hash(_content(self))

    def to_entry(self) -> Entry:
        """Return this as an item of ``KVOffloadNode.spec.entries``; ``from_entry`` inverts it.

        Raises:
            pydantic.ValidationError: This is ``NOTHING`` (who has no entry gets none), or a request
                tightened it to below ``minTokens``: only compiled values are written.
        """
        content = _content(self)
        return Entry.parse({"hash": config_hash(content), **content})

    def to_variant(self, *, nodes: int) -> EffectiveVariant:
        """Return this as an item of a policy's ``status.effective``, in force on so many nodes."""
        content = _content(self)
        identity = config_hash(content)
        for name in ("source", "bucket", "requestOverride"):
            content.pop(name)
        return EffectiveVariant.parse({"hash": identity, "nodes": nodes, **content})

    @classmethod
    def from_entry(cls, entry: Entry) -> Effective:
        """Return the value that an entry stands for."""
        given = {item.field: item for item in entry.provenance or ()}
        sources = {
            path: FieldSource(
                source=Source(item.source),
                clamped_from=item.clamped_from or "",
                clamped_source=Source(item.clamped_source) if item.clamped_source else NOBODY,
            )
            for path, item in given.items()
        }
        values = {rule.path: rule.built_in for rule in FIELDS} | settings_of(entry)
        return build(
            values=values,
            sources=sources,
            request_override=entry.request_override,
            source=Source(entry.source),
            bucket=Source(entry.bucket),
        )


def build(
    *,
    values: Mapping[str, Any],
    sources: Mapping[str, FieldSource],
    request_override: RequestOverride,
    source: Source,
    bucket: Source,
) -> Effective:
    """Return the effective value of one value for each path.

    Fields without a source get ``built-in``.
    """
    return Effective(
        load=EffectiveLoad(
            max_tokens=values[fields.LOAD_MAX_TOKENS],
            min_tokens=values[fields.LOAD_MIN_TOKENS],
            timeout_seconds=values[fields.LOAD_TIMEOUT_SECONDS],
            tiers=values[fields.LOAD_TIERS],
        ),
        store=EffectiveStore(
            max_tokens=values[fields.STORE_MAX_TOKENS],
            scope=values[fields.STORE_SCOPE],
            min_reuse_count=values[fields.STORE_MIN_REUSE_COUNT],
            tiers=values[fields.STORE_TIERS],
        ),
        host_memory_capacity=values[fields.HOST_MEMORY_CAPACITY],
        local_disk_capacity=values[fields.LOCAL_DISK_CAPACITY],
        request_override=request_override,
        source=source,
        bucket=bucket,
        provenance=tuple((rule.path, sources.get(rule.path, _BY_BUILT_IN)) for rule in FIELDS),
    )


def _content(effective: Effective) -> dict[str, Any]:
    """Return the JSON value of an entry without its hash."""
    content: dict[str, Any] = {
        "source": effective.source,
        "bucket": effective.bucket,
        "requestOverride": str(effective.request_override),
    }
    for path, value in effective.values().items():
        if value is None:
            continue
        block, name = path.split(".")
        content.setdefault(block, {})[name] = _json(path, value)
    content["provenance"] = [_provenance(path, item) for path, item in effective.provenance]
    return content


def _json(path: str, value: Value) -> Any:
    if isinstance(value, tuple):
        return [{"medium": str(tier.medium), "locality": str(tier.locality)} for tier in value]
    if isinstance(value, StoreScope):
        return str(value)
    if fields.RULE_OF[path].is_bytes:
        assert isinstance(value, int)
        return fields.bytes_text(value)
    return value


def _provenance(path: str, item: FieldSource) -> dict[str, str]:
    shown = {"field": path, "source": item.source}
    if item.clamped_source:
        shown |= {"clampedFrom": item.clamped_from, "clampedSource": item.clamped_source}
    return shown


_BY_BUILT_IN: Final = FieldSource(source=BUILT_IN)

# What a pod may do until its entry has reached the agent.
NOTHING: Final = build(
    values={rule.path: rule.built_in for rule in FIELDS}
    | {
        fields.LOAD_MAX_TOKENS: 0,
        fields.LOAD_TIERS: (),
        fields.STORE_MAX_TOKENS: 0,
        fields.STORE_TIERS: (),
        fields.HOST_MEMORY_CAPACITY: 0,
    },
    sources={rule.path: FieldSource(source=NO_ENTRY) for rule in FIELDS},
    request_override=RequestOverride.TIGHTEN,
    source=NO_ENTRY,
    bucket=NO_ENTRY,
)
