"""The status of a policy: is it accepted, who overrides it, and is it in force on its nodes."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from kvoffload_api.models import MAX_VARIANTS
from kvoffload_api.reasons import ConditionType, Reason
from kvoffload_operator.plan import NodePlan
from kvoffload_operator.policyfacts import PolicyFacts
from kvoffload_operator.reconcile.conditions import Verdict, conditions, names, summary
from kvoffload_operator.reconcile.keys import Key

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class OnNode:
    """One node that a policy has to do with.

    Attributes:
        plan: What its configuration should be.
        live: Its KVOffloadNode, if there is one.
    """

    plan: NodePlan
    live: Json | None

    @property
    def current(self) -> bool:
        """Whether the planned configuration is in force."""
        live = self.live or {}
        applied = (live.get("status") or {}).get("appliedHash")
        return bool((live.get("spec") or {}).get("hash") == self.plan.hash == applied)

    @property
    def failed(self) -> bool:
        """Whether the agent refused the configuration."""
        return any(
            item.get("type") == "Degraded"
            and item.get("status") == "True"
            and item.get("reason") == "ConfigRejected"
            for item in ((self.live or {}).get("status") or {}).get("conditions") or ()
        )


def decide(
    *, key: Key, policy: PolicyFacts, nodes: Mapping[str, OnNode], conflict: str, now: str
) -> dict[str, Any]:
    """Return the status that a policy should have.

    Args:
        key: Of the policy.
        policy: As last seen, with its status so far.
        nodes: Every node that it has to do with, by name.
        conflict: Name of an older policy with the same selector and priority, or empty.
        now: RFC 3339 time for conditions that flip.
    """
    accepted = _accepted(policy, nodes, key=key, conflict=conflict)
    programmed = _programmed(policy, nodes, key=key) if accepted.status else _not_judged()
    verdicts = {
        ConditionType.ACCEPTED: accepted,
        ConditionType.PROGRAMMED: programmed,
        ConditionType.READY: summary(accepted, programmed),
    }
    mine = {name: node for name, node in nodes.items() if node.plan.shares[key].active}
    current = sum(node.current for node in mine.values())
    failed = sum(node.failed and not node.current for node in mine.values())
    return {
        "observedGeneration": policy.generation,
        "nodes": {
            "selected": len(mine),
            "current": current,
            "stale": len(mine) - current - failed,
            "failed": failed,
        },
        "effective": _effective(nodes, key=key),
        "conditions": conditions(
            verdicts,
            generation=policy.generation,
            old=policy.status.get("conditions") or (),
            now=now,
        ),
    }


def _accepted(
    policy: PolicyFacts, nodes: Mapping[str, OnNode], *, key: Key, conflict: str
) -> Verdict:
    if policy.error:
        return Verdict(status=False, reason=Reason.INVALID, message=policy.error)
    if conflict:
        return Verdict(
            status=False,
            reason=Reason.CONFLICTED,
            message=f"{conflict} is older and has the same podSelector and priority",
        )
    source = policy.model.key if policy.model is not None else ""
    clamped = {
        f"{item['field']} (from {item['clampedFrom']} by {item['source']})"
        for block in _blocks(nodes, key=key).values()
        for item in block.get("provenance") or ()
        # A value of somebody else that was cut is somebody else's business.
        if item.get("clampedFrom") and item.get("clampedSource", "").partition("#")[0] == source
    }
    if clamped:
        return Verdict(status=True, reason=Reason.CLAMPED, message=f"clamped: {names(clamped)}")
    return Verdict(status=True, reason=Reason.ACCEPTED)


def _programmed(policy: PolicyFacts, nodes: Mapping[str, OnNode], *, key: Key) -> Verdict:
    shares = {name: node.plan.shares[key] for name, node in nodes.items()}
    if policy.dry_run:
        return Verdict(
            status=True,
            reason=Reason.PROGRAMMED if shares else Reason.NO_MATCHING_PODS,
            message="mode DryRun: status.effective shows what it would do; nothing is enforced",
        )
    if not shares:
        return Verdict(
            status=True,
            reason=Reason.NO_MATCHING_PODS,
            message="no opted-in engine pod on a configured node matches",
        )
    winners = {winner for share in shares.values() for winner in share.lost_to}
    mine = {name: nodes[name] for name, share in shares.items() if share.active}
    if not mine:
        return Verdict(
            status=False, reason=Reason.OVERRIDDEN, message=f"overridden by {names(winners)}"
        )
    return _in_force(mine, winners=winners)


def _in_force(nodes: Mapping[str, OnNode], *, winners: AbstractSet[str]) -> Verdict:
    waiting = {name: node for name, node in nodes.items() if not node.current}
    refused = [name for name, node in waiting.items() if node.failed]
    if waiting:
        return Verdict(
            status=False,
            reason=Reason.RECONCILING,
            message=f"agents refused the configuration: {names(refused)}"
            if refused
            else "waiting for agents to apply the configuration",
        )
    if winners:
        return Verdict(
            status=True,
            reason=Reason.PARTIALLY_PROGRAMMED,
            message=f"in force, except for pods of {names(winners)}",
        )
    return Verdict(status=True, reason=Reason.PROGRAMMED)


def _not_judged() -> Verdict:
    return Verdict(status=None, reason=Reason.PENDING, message="the policy is not accepted")


def _blocks(nodes: Mapping[str, OnNode], *, key: Key) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for node in nodes.values():
        share = node.plan.shares[key]
        for entry in share.entries | share.would_be:
            found[entry] = node.plan.blocks[entry]
    return found


def _effective(nodes: Mapping[str, OnNode], *, key: Key) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    for node in nodes.values():
        share = node.plan.shares[key]
        counts.update(share.entries | share.would_be)
    blocks = _blocks(nodes, key=key)
    # The most widespread first, and the hash as tie-break, so that the order is always the same.
    ordered = sorted(counts, key=lambda entry: (-counts[entry], entry))[:MAX_VARIANTS]
    hidden = {"hash", "source", "bucket", "requestOverride"}
    return [
        {
            "hash": entry,
            "nodes": counts[entry],
            **{name: value for name, value in blocks[entry].items() if name not in hidden},
        }
        for entry in ordered
    ]


def without_counters(status: Json) -> Json:
    """Return a status less what may wait for half a minute, and less transition times.

    Lists that the server keeps as maps come back in an order of its own, so they are maps here.
    """
    return {
        "observedGeneration": status.get("observedGeneration"),
        "conditions": {
            item["type"]: {
                name: value for name, value in item.items() if name != "lastTransitionTime"
            }
            for item in status.get("conditions") or ()
        },
        "effective": {
            item["hash"]: {name: value for name, value in item.items() if name != "nodes"}
            for item in status.get("effective") or ()
        },
    }


def same(old: Json, new: Json) -> bool:
    """Whether two statuses say the same, transition times aside."""
    counters = [
        (
            status.get("nodes"),
            {item["hash"]: item.get("nodes") for item in status.get("effective") or ()},
        )
        for status in (old, new)
    ]
    return counters[0] == counters[1] and without_counters(old) == without_counters(new)
