"""Compiles all policies into the configuration of one node.

The meaning of policies is ``kvoffload_api.resolution``'s; here their results are put together.
Pods that no selector tells apart get the same result, so each is computed once:
for 2,000 policies and 5,000 nodes that is hundreds of results instead of millions of matches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvoffload_api.hashing import config_hash
from kvoffload_api.models import MAX_ENTRIES, MAX_PODS, Mode, Selector
from kvoffload_api.names import PolicyKey
from kvoffload_api.resolution import (
    Effective,
    NodeView,
    PodView,
    PolicySet,
    compile_dry_run,
    conflicts,
    node_budget,
)
from kvoffload_api.resolution import compile as compile_pod
from kvoffload_operator.plan import NodePlan, Share
from kvoffload_operator.reconcile.keys import Key, Kind

Json = Mapping[str, Any]
Signature = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What all policies together make of one kind of pod on one kind of node."""

    entry: Json
    winner: Key | None
    losers: tuple[Key, ...]
    tried: Mapping[Key, Json]
    cluster: tuple[Key, ...]


@dataclass(kw_only=True)
class _Shares:
    """Collects what each policy has to do with a node."""

    entries: dict[Key, set[str]] = field(default_factory=dict)
    would_be: dict[Key, set[str]] = field(default_factory=dict)
    lost_to: dict[Key, set[str]] = field(default_factory=dict)
    budget: set[Key] = field(default_factory=set)

    def add(self, outcome: _Outcome) -> None:
        entry = outcome.entry["hash"]
        for key in (*outcome.cluster, *((outcome.winner,) if outcome.winner else ())):
            self.entries.setdefault(key, set()).add(entry)
        for key in outcome.losers:
            self.lost_to.setdefault(key, set()).add(str(outcome.winner))
        for key, block in outcome.tried.items():
            self.would_be.setdefault(key, set()).add(block["hash"])

    def made(self) -> dict[Key, Share]:
        keys = {*self.entries, *self.would_be, *self.lost_to, *self.budget}
        return {
            key: Share(
                entries=frozenset(self.entries.get(key, ())),
                would_be=frozenset(self.would_be.get(key, ())),
                lost_to=frozenset(self.lost_to.get(key, ())),
                budget=key in self.budget,
            )
            for key in keys
        }


class NodeCompiler:
    """Plans nodes under the policies of one moment.

    Args:
        policies: All valid policies.
    """

    def __init__(self, policies: PolicySet) -> None:
        self._policies = policies
        self._outcomes: dict[Signature, _Outcome] = {}
        cluster = [item.spec for item in policies.cluster]
        self._pod_keys = _label_keys(
            [item.spec.pod_selector for item in policies.namespaced]
            + [spec.pod_selector for spec in cluster]
        )
        self._namespace_keys = _label_keys(spec.namespace_selector for spec in cluster)
        self._node_keys = _label_keys(spec.node_selector for spec in cluster)
        self._conflicts = conflicts(policies)

    def conflict(self, key: PolicyKey) -> str:
        """Return the older policy that a policy can never win against, or an empty string."""
        return self._conflicts.get(key, "")

    def plan(self, *, node: NodeView, pods: Iterable[PodView]) -> NodePlan:
        """Return the configuration of a node.

        Args:
            node: The node.
            pods: The engine pods that are bound to it, in the order in which they find room.
        """
        shares = _Shares()
        entries: dict[str, Json] = {}
        blocks: dict[str, Json] = {}
        listed: list[dict[str, str]] = []
        left_out = []
        for pod in pods:
            outcome = self._outcome(pod, node)
            entry = outcome.entry
            full = len(listed) == MAX_PODS or (
                entry["hash"] not in entries and len(entries) == MAX_ENTRIES
            )
            if full:
                left_out.append(f"{pod.namespace}/{pod.name}")
                continue
            entries[entry["hash"]] = entry
            blocks.update({block["hash"]: block for block in outcome.tried.values()})
            shares.add(outcome)
            listed.append(
                {
                    "uid": pod.uid,
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "entry": entry["hash"],
                }
            )
        budget = self._budget(node, shares)
        rest = {
            **({"budget": budget} if budget else {}),
            "entries": [entries[key] for key in sorted(entries)],
            "pods": listed,
        }
        return NodePlan(
            spec={"hash": config_hash(rest), **rest},
            shares=shares.made(),
            blocks=blocks | entries,
            left_out=tuple(left_out),
        )

    def _budget(self, node: NodeView, shares: _Shares) -> Json:
        budget = node_budget(self._policies, node)
        for policy in self._policies.cluster:
            # Also one whose fields others set first: its budget was looked at and had no effect.
            if policy.budget and policy.selects_node(node):
                shares.budget.add(Key(kind=Kind.CLUSTER_POLICY, name=policy.name))
        model = budget.to_model()
        return model.document() if model is not None else {}

    def _outcome(self, pod: PodView, node: NodeView) -> _Outcome:
        signature = (
            pod.namespace,
            _signature(pod.labels, self._pod_keys),
            _signature(pod.namespace_labels, self._namespace_keys),
            _signature(node.labels, self._node_keys),
        )
        outcome = self._outcomes.get(signature)
        if outcome is None:
            outcome = self._outcomes[signature] = self._compute(pod, node)
        return outcome

    def _compute(self, pod: PodView, node: NodeView) -> _Outcome:
        winner = self._policies.winner(pod)
        selecting = self._policies.selecting(pod)
        tried = [policy for policy in selecting if policy.spec.mode is Mode.DRY_RUN]
        losers = [item for item in selecting if item is not winner and item not in tried]
        return _Outcome(
            entry=_entry(compile_pod(self._policies, pod, node)),
            winner=_key(winner.namespace, winner.name) if winner else None,
            losers=tuple(_key(policy.namespace, policy.name) for policy in losers),
            tried={
                _key(policy.namespace, policy.name): _entry(
                    compile_dry_run(self._policies, policy, pod, node)
                )
                for policy in tried
            },
            cluster=tuple(
                Key(kind=Kind.CLUSTER_POLICY, name=policy.name)
                for policy in self._policies.cluster
                if policy.selects(pod, node)
            ),
        )


def _entry(effective: Effective) -> Json:
    return effective.to_entry().document()


def _key(namespace: str, name: str) -> Key:
    return Key(kind=Kind.POLICY, namespace=namespace, name=name)


def _label_keys(selectors: Iterable[Selector | None]) -> tuple[str, ...]:
    mentioned = [item.keys() for item in selectors if item is not None]
    return tuple(sorted(frozenset().union(*mentioned)))


def _signature(labels: Mapping[str, str], keys: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple(labels.get(key) for key in keys)
