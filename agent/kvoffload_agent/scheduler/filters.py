"""Which secondary tiers a request may use (``scheduler.md`` 6.6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvoffload_agent.scheduler.types import RequestCaps, TierMatcher
from kvoffload_agent.tiers.cascade import Below
from kvoffload_agent.tiers.request import PoolRequest


def restrict(request: PoolRequest, below: Below, caps: RequestCaps) -> None:
    """Let a request load from and store to the tiers that its caps accept, and no others."""
    if not below.tiers:
        return
    request.load_tiers = _allowed(below, caps.load_tiers)
    request.store_tiers = _allowed(below, caps.store_tiers)


def _allowed(below: Below, matchers: Sequence[TierMatcher] | None) -> tuple[int, ...]:
    return below.all if matchers is None else below.allowed(partial(_accepts, matchers))


def _accepts(matchers: Sequence[TierMatcher], medium: str | None, locality: str | None) -> bool:
    """Whether any matcher takes a tier; what either does not say matches, as in vLLM (6.6).

    Tiers of an agent say both: a pool refuses others (``UndeclaredTierError``, report B19).
    """
    return any(
        (matcher.medium is None or medium is None or matcher.medium == medium)
        and (matcher.locality is None or locality is None or matcher.locality == locality)
        for matcher in matchers
    )
