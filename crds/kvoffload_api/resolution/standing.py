"""How each namespaced policy fares: which pods it wins, and who overrides it (``operator.md`` 1.6).

What nodes have applied is not known here: the operator turns ``Programmed`` into ``Reconciling``
and the like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvoffload_api.hashing import canonical_json
from kvoffload_api.models.selector import Selector
from kvoffload_api.models.status import MESSAGE_MAX
from kvoffload_api.models.types import Mode
from kvoffload_api.names import PodUID, PolicyKey
from kvoffload_api.reasons import Reason
from kvoffload_api.resolution.effective import Effective
from kvoffload_api.resolution.inputs import NamespacedPolicy, PodView, PolicySet

# More names than that do not help whoever reads a message.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a KVOffloadPolicy fares.

    Attributes:
        accepted: Reason of ``Accepted``: Accepted, Clamped or Conflicted.
        accepted_message: In words; empty if there is nothing to add.
        programmed: Reason of ``Programmed`` as far as policies and pods decide it: Programmed,
            PartiallyProgrammed, Overridden or NoMatchingPods.
        programmed_message: In words; empty if there is nothing to add.
        pods: Pods that it wins; for a ``DryRun`` policy those that it selects.
        lost: Pods that it selects and another wins, with the winner.
    """

    accepted: Reason
    accepted_message: str
    programmed: Reason
    programmed_message: str
    pods: tuple[PodUID, ...]
    lost: Mapping[PodUID, PolicyKey]


def standings(
    policies: PolicySet,
    pods: Iterable[PodView],
    *,
    effective: Mapping[PodUID, Effective] | None = None,
) -> dict[PolicyKey, Standing]:
    """Return how every KVOffloadPolicy fares.

    Args:
        policies: All valid policies.
        pods: All engine pods that are bound to a node.
        effective: What ``compile`` gave the pods; tells whose values are clamped.
    """
    won: dict[PolicyKey, list[PodUID]] = {}
    lost: dict[PolicyKey, dict[PodUID, PolicyKey]] = {}
    for pod in pods:
        selecting = policies.selecting(pod)
        winner = next((item for item in selecting if item.spec.mode is not Mode.DRY_RUN), None)
        for policy in selecting:
            if policy is winner or policy.spec.mode is Mode.DRY_RUN:
                won.setdefault(policy.key, []).append(pod.uid)
            elif winner is not None:
                lost.setdefault(policy.key, {})[pod.uid] = winner.key
    rivals = conflicts(policies)
    return {
        policy.key: _standing(
            rival=rivals.get(policy.key),
            pods=tuple(sorted(won.get(policy.key, ()))),
            lost=lost.get(policy.key, {}),
            clamps=clamps(policy.key, (effective or {}).values()),
        )
        for policy in policies.namespaced
    }


def conflicts(policies: PolicySet) -> dict[PolicyKey, PolicyKey]:
    """Return the policies that can never win a pod, each with the older one that always does.

    These have the namespace, priority and selector of an older one. A ``DryRun`` policy conflicts
    with none: to try a change beside what is in force is its purpose.
    """
    found: dict[PolicyKey, PolicyKey] = {}
    for ranked in policies.by_namespace.values():
        first: dict[tuple[int, str], NamespacedPolicy] = {}
        for policy in ranked:
            if policy.spec.mode is Mode.DRY_RUN:
                continue
            identity = (policy.spec.priority, _selection(policy.spec.pod_selector))
            elder = first.setdefault(identity, policy)
            if elder is not policy:
                found[policy.key] = elder.key
    return found


def clamps(key: PolicyKey, effective: Iterable[Effective]) -> tuple[str, ...]:
    """Return which values of a policy limits have cut, in words, sorted."""
    found = {
        f"{path} {item.clamped_from} cut by {item.source}"
        for each in effective
        for path, item in each.provenance
        if item.clamped_source.partition("#")[0] == key
    }
    return tuple(sorted(found))


def _selection(selector: Selector | None) -> str:
    """Return one text for all selectors that are written differently but equal."""
    if selector is None:
        return canonical_json([[], []])
    labels = sorted((selector.match_labels or {}).items())
    expressions: list[Any] = sorted(
        [item.key, str(item.operator), sorted(item.values or ())]
        for item in selector.match_expressions or ()
    )
    return canonical_json([labels, expressions])


def _standing(
    *,
    rival: PolicyKey | None,
    pods: tuple[PodUID, ...],
    lost: Mapping[PodUID, PolicyKey],
    clamps: tuple[str, ...],
) -> Standing:
    if rival:
        accepted = Reason.CONFLICTED
        accepted_message = (
            f"{rival} is older and has the same priority and podSelector: change either, "
            "or delete this policy"
        )
    elif clamps:
        accepted, accepted_message = Reason.CLAMPED, _listed(clamps)
    else:
        accepted, accepted_message = Reason.ACCEPTED, ""
    winners = _listed(sorted(set(lost.values())))
    if not pods and not lost:
        programmed, message = Reason.NO_MATCHING_PODS, "no engine pod is selected"
    elif not lost:
        programmed, message = Reason.PROGRAMMED, ""
    elif pods:
        programmed = Reason.PARTIALLY_PROGRAMMED
        message = f"some of the selected pods have {winners}"
    else:
        programmed, message = Reason.OVERRIDDEN, f"all selected pods have {winners}"
    return Standing(
        accepted=accepted,
        accepted_message=_short(accepted_message),
        programmed=programmed,
        programmed_message=_short(message),
        pods=pods,
        lost=dict(sorted(lost.items())),
    )


def _listed(items: Iterable[str]) -> str:
    names = list(items)
    more = ", …" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _short(message: str) -> str:
    return message if len(message) <= MESSAGE_MAX else message[: MESSAGE_MAX - 1] + "…"
