"""From an effective policy and a request's parameters to the caps that the scheduler takes."""

from __future__ import annotations

from typing import Final

import structlog

from kvoffload_agent.scheduler.types import RequestCaps, TierMatcher
from kvoffload_agent.server.engine import Entry, Resolved
from kvoffload_api.models.offload import Tier
from kvoffload_api.models.types import Locality, Medium, StoreScope
from kvoffload_api.resolution import NOTHING, Effective, tighten

_ALL: Final = tuple(
    Tier(medium=medium, locality=locality) for medium in Medium for locality in Locality
)
_DISK: Final = Tier(medium=Medium.STORAGE, locality=Locality.LOCAL)

_log = structlog.get_logger(__name__)


def entry_of(effective: Effective, *, name: str | None = None) -> Entry:
    """Return the entry of a compiled value; ``name`` is its hash."""
    return Entry(
        name=name or effective.hash,
        source=effective.source,
        bucket=effective.bucket,
        capacity=effective.host_memory_capacity,
        disk_capacity=effective.local_disk_capacity or 0,
        effective=effective,
    )


def resolve(entry: Entry | None, params: object) -> Resolved:
    """Tighten an entry by raw request parameters; without an entry nothing is allowed.

    Malformed fields are as if absent (``docs/adr/0003``): they are named in the result, never
    raised, and never widen anything.
    """
    found = tighten(entry.effective if entry else NOTHING, params)
    for fault in found.invalid:
        _log.info("request field ignored", field=fault.field, reason=fault.reason)
    effective = found.effective
    disk = bool(effective.local_disk_capacity)
    return Resolved(
        caps=RequestCaps(
            max_load_tokens=0 if effective.loads_nothing else effective.load.max_tokens,
            max_offload_tokens=effective.store.max_tokens,
            min_load_tokens=effective.load.min_tokens,
            prompt_only=effective.store.scope is StoreScope.PROMPT_ONLY,
            load_tiers=_matchers(effective.load.tiers, disk=disk),
            store_tiers=_matchers(effective.store.tiers, disk=disk),
            load_timeout_seconds=float(effective.load.timeout_seconds),
            sources={path: item.source for path, item in effective.provenance},
        ),
        timeout_seconds=float(effective.load.timeout_seconds),
        invalid=tuple(fault.field for fault in found.invalid),
    )


def _matchers(tiers: tuple[Tier, ...] | None, *, disk: bool) -> tuple[TierMatcher, ...] | None:
    """Return what accepts the tiers of a policy; without ``disk`` bytes not the local disk.

    Another pod's policy may give the partition that both share bytes of disk.
    """
    if tiers is None:
        if disk:
            return None
        tiers = _ALL
    return tuple(
        TierMatcher(medium=str(tier.medium).lower(), locality=str(tier.locality).lower())
        for tier in tiers
        if disk or tier != _DISK
    )
