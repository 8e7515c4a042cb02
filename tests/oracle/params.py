"""``kv_transfer_params`` of recorded requests, read as the recorded engine read them.

Not through a policy: a policy's resolution drops caps that no request can reach, while the recorded
engine let even those round a hit down.
"""

from __future__ import annotations

from typing import Any

from kvoffload_agent.scheduler.types import RequestCaps, TierMatcher

_MEDIA = ("cpu", "storage")
_LOCALITIES = ("local", "remote")


def caps_of(params: Any, *, prompt_only: bool) -> RequestCaps:
    """Return the caps of a request."""
    given = params or {}
    return RequestCaps(
        max_load_tokens=_cap(given.get("max_load_tokens")),
        max_offload_tokens=_cap(given.get("max_offload_tokens")),
        prompt_only=prompt_only,
        load_tiers=_tiers(given.get("kv_load_tiers")),
    )


def _cap(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _tiers(value: Any) -> tuple[TierMatcher, ...] | None:
    if not isinstance(value, list):
        return None
    matchers = [_matcher(item) for item in value]
    valid = tuple(matcher for matcher in matchers if matcher is not None)
    return valid if valid or not value else None


def _matcher(item: Any) -> TierMatcher | None:
    if not isinstance(item, dict):
        return None
    medium, locality = item.get("medium"), item.get("locality")
    if not _known(medium, _MEDIA) or not _known(locality, _LOCALITIES):
        return None
    return TierMatcher(
        medium=medium.lower() if medium is not None else None,
        locality=locality.lower() if locality is not None else None,
    )


def _known(value: Any, names: tuple[str, ...]) -> bool:
    return value is None or (isinstance(value, str) and value.lower() in names)
