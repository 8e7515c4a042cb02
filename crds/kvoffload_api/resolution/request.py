"""``tighten``: what one request may do.

A request may only narrow. A malformed field is as if absent: the result is exactly the policy's,
never wider (``operator.md`` 1.6; ``scheduler.md`` 2 and 6.6).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kvoffload_api.models.offload import Tier
from kvoffload_api.models.types import INT32_MAX, Locality, Medium, RequestOverride
from kvoffload_api.names import REQUEST
from kvoffload_api.resolution import fields
from kvoffload_api.resolution.effective import Effective, FieldSource
from kvoffload_api.resolution.fields import EVERY_TIER, RULE_OF, Value, text_of

# vLLM's names.
MAX_LOAD_TOKENS: Final = "max_load_tokens"
MAX_OFFLOAD_TOKENS: Final = "max_offload_tokens"
KV_LOAD_TIERS: Final = "kv_load_tiers"
PARAMS: Final = "kv_transfer_params"

_CAPS: Final = (
    (MAX_LOAD_TOKENS, fields.LOAD_MAX_TOKENS),
    (MAX_OFFLOAD_TOKENS, fields.STORE_MAX_TOKENS),
)
_MEDIA: Final = {str(medium).lower(): medium for medium in Medium}
_LOCALITIES: Final = {str(locality).lower(): locality for locality in Locality}
# Reasons go to logs and Events; a client must not be able to fill them.
_SHOWN: Final = 60
# Four kinds of tiers exist; a longer list is read no further than any honest one is long.
_MAX_MATCHERS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidField:
    """A field of a request that was not, or not in full, understood.

    Attributes:
        field: Its name on the wire, such as ``max_load_tokens``; a label of metrics.
        reason: What was wrong and what would be right.
    """

    field: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightened:
    """What a request may do.

    Attributes:
        effective: The policy's value, narrowed by the request.
        invalid: At most one for each field; for log, counter and Event.
    """

    effective: Effective
    invalid: tuple[InvalidField, ...] = ()


def tighten(effective: Effective, request: Any) -> Tightened:
    """Return what a request may do under an effective policy.

    Args:
        effective: The pod's.
        request: ``kv_transfer_params`` as the client gave them, whatever it is.
    """
    if request is None:
        return Tightened(effective=effective)
    if not isinstance(request, Mapping):
        reason = f"must be an object, not {_shown(request)}"
        return Tightened(effective=effective, invalid=(InvalidField(field=PARAMS, reason=reason),))
    asked, invalid = _understood(request)
    if asked and effective.request_override is RequestOverride.TIGHTEN:
        effective = _narrow(effective, asked)
    return Tightened(effective=effective, invalid=tuple(invalid))


def essence(request: Any) -> dict[str, Any]:
    """Return what of a request's parameters narrows anything, to be kept instead of them.

    It has at most three fields of bounded size, none of them malformed, and tightens every policy
    exactly as the whole does.
    """
    asked, _ = _understood(request) if isinstance(request, Mapping) else ({}, [])
    kept: dict[str, Any] = {name: asked[path] for name, path in _CAPS if path in asked}
    tiers = asked.get(fields.LOAD_TIERS)
    if isinstance(tiers, tuple):
        kept[KV_LOAD_TIERS] = [
            {"medium": str(tier.medium).lower(), "locality": str(tier.locality).lower()}
            for tier in tiers
        ]
    return kept


def _understood(request: Mapping[Any, Any]) -> tuple[dict[str, Value], list[InvalidField]]:
    """Return what the fields ask for by policy path, and what is wrong with them."""
    asked: dict[str, Value] = {}
    invalid: list[InvalidField] = []
    for name, path in _CAPS:
        given = request.get(name)
        if given is None:
            continue
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            asked[path] = given
        else:
            reason = f"must be an integer of at least 0, not {_shown(given)}"
            invalid.append(InvalidField(field=name, reason=reason))
    matchers = request.get(KV_LOAD_TIERS)
    if matchers is not None:
        wanted, reason = _wanted_tiers(matchers)
        if wanted is not None:
            asked[fields.LOAD_TIERS] = wanted
        if reason:
            invalid.append(InvalidField(field=KV_LOAD_TIERS, reason=reason))
    return asked, invalid


def _narrow(effective: Effective, asked: Mapping[str, Value]) -> Effective:
    changed: dict[str, Any] = {}  # of the types that the paths have
    for path, wanted in asked.items():
        current = effective.value(path)
        narrower = _narrower(current, wanted)
        if narrower != current:
            changed[path] = narrower
    if not changed:
        return effective
    load, store = effective.load, effective.store
    load = replace(
        load,
        max_tokens=changed.get(fields.LOAD_MAX_TOKENS, load.max_tokens),
        tiers=changed.get(fields.LOAD_TIERS, load.tiers),
    )
    store = replace(store, max_tokens=changed.get(fields.STORE_MAX_TOKENS, store.max_tokens))
    provenance = tuple(
        (path, _requested(path, effective) if path in changed else source)
        for path, source in effective.provenance
    )
    return replace(effective, load=load, store=store, provenance=provenance)


def _requested(path: str, effective: Effective) -> FieldSource:
    return FieldSource(
        source=REQUEST,
        clamped_from=text_of(RULE_OF[path], effective.value(path)),
        clamped_source=effective.source_of(path),
    )


def _narrower(current: Value, wanted: Value) -> Value:
    if isinstance(wanted, tuple):
        allowed = EVERY_TIER if current is None else current
        assert isinstance(allowed, tuple)
        kept = tuple(tier for tier in allowed if tier in wanted)
        return current if len(kept) == len(allowed) else kept
    assert isinstance(wanted, int)
    if current is None:
        # No request has more tokens than that: such a cap is none, and none may overflow.
        return wanted if wanted < INT32_MAX else None
    assert isinstance(current, int)
    return min(current, wanted)


def _wanted_tiers(given: Any) -> tuple[tuple[Tier, ...] | None, str]:
    """Return the kinds of tiers that the matchers name, None for no restriction, and a fault."""
    if not isinstance(given, list | tuple):
        return None, f"must be a list such as [{{'medium': 'cpu'}}], not {_shown(given)}"
    if not given:
        return (), ""
    wanted: set[Tier] = set()
    faults: list[str] = []
    understood = False
    for item in given[:_MAX_MATCHERS]:
        matched, fault = _matched(item)
        if fault:
            faults.append(fault)
        if matched is not None:
            understood = True
            wanted.update(matched)
    if len(given) > _MAX_MATCHERS:
        faults.append(f"must have at most {_MAX_MATCHERS} items")
    if not understood:
        return None, faults[0]
    return tuple(tier for tier in EVERY_TIER if tier in wanted), faults[0] if faults else ""


def _matched(item: Any) -> tuple[Iterable[Tier] | None, str]:
    """Return the kinds of tiers that one matcher names, None if it is malformed, and a fault."""
    if not isinstance(item, Mapping):
        return None, f"items must be objects with `medium` and `locality`, not {_shown(item)}"
    medium, locality = item.get("medium"), item.get("locality")
    if medium is not None and _lower(medium) not in _MEDIA:
        return None, f"`medium` must be cpu or storage, not {_shown(medium)}"
    if locality is not None and _lower(locality) not in _LOCALITIES:
        return None, f"`locality` must be local or remote, not {_shown(locality)}"
    tiers = [
        tier
        for tier in EVERY_TIER
        if (medium is None or tier.medium is _MEDIA[_lower(medium)])
        and (locality is None or tier.locality is _LOCALITIES[_lower(locality)])
    ]
    unknown = next((key for key in item if key not in ("medium", "locality")), None)
    fault = "" if unknown is None else f"unknown key {_shown(unknown)}: use medium and locality"
    return tiers, fault


def _lower(value: Any) -> str:
    return value.lower() if isinstance(value, str) else ""


def _shown(value: Any) -> str:
    """Return a short text for any value, however large or deep."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int):
        # Python refuses to print integers of thousands of digits.
        digits = 60
        return (
            repr(value)
            if value.bit_length() < digits
            else f"an integer of {value.bit_length()} bits"
        )
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    return f"a value of type {type(value).__name__}"
