"""The one table of the offload block's fields: how each merges and what it is if nobody sets it.

``operator.md`` 1.4. ``compile``, ``tighten``, provenance and entries all follow this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from kvoffload_api.models.offload import Offload, Tier
from kvoffload_api.models.types import Locality, Medium, StoreScope
from kvoffload_api.quantity import format_quantity, parse_quantity

# Tokens, seconds, counts and bytes are ints; None is "no bound", and for disk "none".
Value = int | StoreScope | tuple[Tier, ...] | None


class Merge(Enum):
    """How limits cut a field."""

    MIN = auto()
    # None is the narrowest: without a capacity there is no such tier, and a limit grants none.
    MIN_IF_PRESENT = auto()
    INTERSECT = auto()
    # Not a ceiling: limits say nothing about it.
    KEEP = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """One field.

    Attributes:
        path: As users write it, such as ``load.maxTokens``.
        merge: How limits cut it.
        built_in: Its value if nobody sets it.
        is_bytes: Whether it is written as a quantity.
    """

    path: str
    merge: Merge
    built_in: Value
    is_bytes: bool = False


LOAD_MAX_TOKENS: Final = "load.maxTokens"
LOAD_MIN_TOKENS: Final = "load.minTokens"
LOAD_TIMEOUT_SECONDS: Final = "load.timeoutSeconds"
LOAD_TIERS: Final = "load.tiers"
STORE_MAX_TOKENS: Final = "store.maxTokens"
STORE_SCOPE: Final = "store.scope"
STORE_MIN_REUSE_COUNT: Final = "store.minReuseCount"
STORE_TIERS: Final = "store.tiers"
HOST_MEMORY_CAPACITY: Final = "hostMemory.capacity"
LOCAL_DISK_CAPACITY: Final = "localDisk.capacity"

# Generous for a disk and short against a user's patience; every load has a deadline.
_TIMEOUT_SECONDS: Final = 5

FIELDS: Final[tuple[FieldRule, ...]] = (
    FieldRule(path=LOAD_MAX_TOKENS, merge=Merge.MIN, built_in=None),
    FieldRule(path=LOAD_MIN_TOKENS, merge=Merge.KEEP, built_in=0),
    FieldRule(path=LOAD_TIMEOUT_SECONDS, merge=Merge.MIN, built_in=_TIMEOUT_SECONDS),
    FieldRule(path=LOAD_TIERS, merge=Merge.INTERSECT, built_in=None),
    FieldRule(path=STORE_MAX_TOKENS, merge=Merge.MIN, built_in=None),
    FieldRule(path=STORE_SCOPE, merge=Merge.KEEP, built_in=StoreScope.PROMPT_ONLY),
    FieldRule(path=STORE_MIN_REUSE_COUNT, merge=Merge.KEEP, built_in=0),
    FieldRule(path=STORE_TIERS, merge=Merge.INTERSECT, built_in=None),
    FieldRule(path=HOST_MEMORY_CAPACITY, merge=Merge.MIN, built_in=None, is_bytes=True),
    FieldRule(path=LOCAL_DISK_CAPACITY, merge=Merge.MIN_IF_PRESENT, built_in=None, is_bytes=True),
)
RULE_OF: Final[Mapping[str, FieldRule]] = {rule.path: rule for rule in FIELDS}

# Every tier declares both, so these are all kinds of tiers there can be.
EVERY_TIER: Final[tuple[Tier, ...]] = tuple(
    Tier(medium=medium, locality=locality) for medium in Medium for locality in Locality
)


def settings_of(block: Offload | None) -> dict[str, Value]:
    """Return the fields that a block sets, by path; capacities in bytes."""
    found: dict[str, Value] = {}
    if block is None:
        return found
    if block.load:
        found[LOAD_MAX_TOKENS] = block.load.max_tokens
        found[LOAD_MIN_TOKENS] = block.load.min_tokens
        found[LOAD_TIMEOUT_SECONDS] = block.load.timeout_seconds
        found[LOAD_TIERS] = block.load.tiers
    if block.store:
        found[STORE_MAX_TOKENS] = block.store.max_tokens
        found[STORE_SCOPE] = block.store.scope
        found[STORE_MIN_REUSE_COUNT] = block.store.min_reuse_count
        found[STORE_TIERS] = block.store.tiers
    if block.host_memory and block.host_memory.capacity:
        found[HOST_MEMORY_CAPACITY] = parse_quantity(block.host_memory.capacity)
    if block.local_disk and block.local_disk.capacity:
        found[LOCAL_DISK_CAPACITY] = parse_quantity(block.local_disk.capacity)
    return {path: value for path, value in found.items() if value is not None}


def clamp(rule: FieldRule, value: Value, limit: Value) -> Value:
    """Return a value cut by a limit; the value itself if the limit does not cut it."""
    if limit is None or rule.merge is Merge.KEEP:
        return value
    if rule.merge is Merge.INTERSECT:
        return _intersect(value, limit)
    if value is None:
        return None if rule.merge is Merge.MIN_IF_PRESENT else limit
    assert isinstance(value, int)
    assert isinstance(limit, int)
    return min(value, limit)


def _intersect(value: Value, limit: Value) -> Value:
    assert isinstance(limit, tuple)
    if value is None:
        return limit
    assert isinstance(value, tuple)
    kept = tuple(tier for tier in value if tier in limit)
    return value if len(kept) == len(value) else kept


def within(rule: FieldRule, value: Value, limit: Value) -> bool:
    """Tell whether ``value`` allows no more than ``limit``; fields that limit nothing always do."""
    if rule.merge is Merge.KEEP:
        return True
    if rule.merge is Merge.MIN_IF_PRESENT and (value is None or limit is None):
        return value is None
    if value is None or limit is None:
        return limit is None
    if rule.merge is Merge.INTERSECT:
        assert isinstance(value, tuple)
        assert isinstance(limit, tuple)
        return set(value) <= set(limit)
    assert isinstance(value, int)
    assert isinstance(limit, int)
    return value <= limit


def text_of(rule: FieldRule, value: Value) -> str:
    """Return a value as one word for people: ``8192``, ``64Gi``, ``CPU/Local,Storage/Local``."""
    if value is None:
        return "none" if rule.merge is Merge.MIN_IF_PRESENT else "all"
    if isinstance(value, tuple):
        return tiers_text(value)
    if rule.is_bytes:
        assert isinstance(value, int)
        return bytes_text(value)
    return str(value)


def bytes_text(value: int) -> str:
    """Return bytes as a quantity; ``0``, which no policy may set, for who may have none."""
    return format_quantity(value) if value else "0"


def tiers_text(tiers: Iterable[Tier]) -> str:
    """Return tiers as one word for people."""
    return ",".join(f"{tier.medium}/{tier.locality}" for tier in tiers) or "host-memory-only"
