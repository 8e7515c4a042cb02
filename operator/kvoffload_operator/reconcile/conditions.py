"""Conditions of a policy: their reasons, and when they may change.

Reasons are API: people and scripts wait for them.
A message holds sorted names and nothing that changes by itself (no time, no count),
because a status that differs at every pass is written at every pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvoffload_api.models import MESSAGE_MAX
from kvoffload_api.reasons import ConditionStatus, ConditionType, Reason

Json = Mapping[str, Any]

_STATUS: Final = {
    True: ConditionStatus.TRUE,
    False: ConditionStatus.FALSE,
    None: ConditionStatus.UNKNOWN,
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A condition without its bookkeeping.

    Attributes:
        status: ``True``, ``False``, or ``None`` for ``Unknown``.
        reason: Why.
        message: For people.
    """

    status: bool | None
    reason: Reason
    message: str = ""


def summary(accepted: Verdict, programmed: Verdict) -> Verdict:
    """Return ``Ready``: the first condition that does not hold, else what was programmed."""
    for verdict in (accepted, programmed):
        if verdict.status is not True:
            return verdict
    return programmed


def conditions(
    verdicts: Mapping[ConditionType, Verdict], *, generation: int, old: Sequence[Json], now: str
) -> list[dict[str, Any]]:
    """Return conditions as the API has them.

    Args:
        verdicts: By type, in the order they are shown.
        generation: Of the spec that was judged.
        old: The conditions so far; ``lastTransitionTime`` moves only when ``status`` flips.
        now: RFC 3339 time for those that flip.
    """
    before = {item.get("type"): item for item in old}
    made = []
    for kind, verdict in verdicts.items():
        status = _STATUS[verdict.status].value
        last = before.get(kind.value, {})
        kept = last.get("lastTransitionTime") if last.get("status") == status else None
        made.append(
            {
                "type": kind.value,
                "status": status,
                "reason": verdict.reason.value,
                "message": verdict.message[:MESSAGE_MAX],
                "observedGeneration": generation,
                "lastTransitionTime": kept or now,
            }
        )
    return made


def names(items: Iterable[str], *, limit: int = 5) -> str:
    """Return names in order for a message, the first few of many."""
    ordered = sorted(items)
    shown = ", ".join(ordered[:limit])
    return f"{shown} and others" if len(ordered) > limit else shown
