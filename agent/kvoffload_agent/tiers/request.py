"""What a pool remembers of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvoffload_agent.tiers.policy.base import Scratch

Key = tuple[int, bytes]


@dataclass(slots=True, eq=False, kw_only=True)
class PoolRequest:
    """``number`` is unique in the pool. ``load_tiers``, ``store_tiers``: allowed secondary tiers.

    ``origins``: keys whose promotion this request began, and from which tier.
    ``firm``: it has waited already, so promotions for it evict nothing that it needs itself.
    ``rounds``: steps at whose end promotions for it began since then. ``promoting``: chunks whose
    promotion for it was found and has not ended.
    ``writing``: accepted offers whose copies run. ``parked``: keys, by tier, that a request-level
    tier shall have as soon as they are written. ``finished``: no more will be offered.
    """

    number: int
    load_tiers: tuple[int, ...]
    store_tiers: tuple[int, ...]
    scratch: Scratch = field(default_factory=Scratch)
    origins: dict[Key, int] = field(default_factory=dict)
    firm: bool = False
    rounds: int = 0
    promoting: int = 0
    writing: int = 0
    parked: dict[int, list[Key]] = field(default_factory=dict)
    finished: bool = False
