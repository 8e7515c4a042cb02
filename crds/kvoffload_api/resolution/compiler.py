"""``compile``: what a pod on a node may do, from all policies (``operator.md`` 1.6).

The first that sets a field wins: the namespace's policy, the defaults of the cluster policies by
rank, the built-in value. Then every limit cuts, then the node's budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvoffload_api.models.clusterpolicy import NodeBudget
from kvoffload_api.models.types import RequestOverride
from kvoffload_api.names import BUILT_IN, Source
from kvoffload_api.quantity import format_quantity
from kvoffload_api.resolution import fields
from kvoffload_api.resolution.effective import Effective, FieldSource, build
from kvoffload_api.resolution.fields import FIELDS, RULE_OF, FieldRule, Value, clamp, text_of
from kvoffload_api.resolution.inputs import (
    ClusterPolicy,
    NamespacedPolicy,
    NodeView,
    PodView,
    PolicySet,
)

_BUDGETED: Final = {
    "hostMemory": fields.HOST_MEMORY_CAPACITY,
    "localDisk": fields.LOCAL_DISK_CAPACITY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the agent of a node may use, before its own guard.

    Attributes:
        host_memory: Bytes; None = what the agent's own limit allows.
        local_disk: Bytes; None = no bound.
        reserved_memory: Bytes left to others; None = only the agent's reserve.
        sources: Who set each, by the field's name such as ``hostMemory``.
    """

    host_memory: int | None
    local_disk: int | None
    reserved_memory: int | None
    sources: Mapping[str, Source]

    def to_model(self) -> NodeBudget | None:
        """Return this as ``KVOffloadNode.spec.budget``; None if nothing is set."""
        given = {
            "hostMemory": self.host_memory,
            "localDisk": self.local_disk,
            "reservedMemory": self.reserved_memory,
        }
        texts = {name: format_quantity(value) for name, value in given.items() if value is not None}
        return NodeBudget.parse(texts) if texts else None


def node_budget(policies: PolicySet, node: NodeView) -> Budget:
    """Return the budget of a node: of each field the first by rank that sets it.

    A budget is for a node, so only ``nodeSelector`` decides whether a policy's applies.
    """
    values: dict[str, int] = {}
    sources: dict[str, Source] = {}
    for policy in policies.ranked_cluster:
        if not policy.selects_node(node):
            continue
        for name, value in policy.budget.items():
            if name not in values:
                values[name] = value
                sources[name] = Source(f"{policy.key}#nodeBudget")
    return Budget(
        host_memory=values.get("hostMemory"),
        local_disk=values.get("localDisk"),
        reserved_memory=values.get("reservedMemory"),
        sources=sources,
    )


def compile(policies: PolicySet, pod: PodView, node: NodeView) -> Effective:  # noqa: A001 - the design's name
    """Return what a pod on a node may do, with one source for every field.

    Args:
        policies: All valid policies, in any order.
        pod: The pod.
        node: Its node.
    """
    return _compile(policies, pod, node, winner=policies.winner(pod))


def compile_dry_run(
    policies: PolicySet, policy: NamespacedPolicy, pod: PodView, node: NodeView
) -> Effective:
    """Return what a pod could do if ``policy`` (in ``mode: DryRun``) had won it."""
    return _compile(policies, pod, node, winner=policy)


def _compile(
    policies: PolicySet, pod: PodView, node: NodeView, *, winner: NamespacedPolicy | None
) -> Effective:
    cluster = [item for item in policies.ranked_cluster if item.selects(pod, node)]
    layers = list(_layers(winner, cluster))
    limits = list(_limits(cluster, node_budget(policies, node)))
    values: dict[str, Value] = {}
    sources: dict[str, FieldSource] = {}
    for rule in FIELDS:
        value, source = _first(rule, layers)
        values[rule.path], sources[rule.path] = _cut(rule, value, source, limits)
    _fit_minimum(values, sources)
    return build(
        values=values,
        sources=sources,
        request_override=winner.spec.request_override if winner else RequestOverride.TIGHTEN,
        source=Source(winner.key) if winner else _cluster_source(cluster),
        bucket=Source(winner.key if winner else f"Namespace/{pod.namespace}"),
    )


_Layer = tuple[Source, Mapping[str, Value]]


def _layers(winner: NamespacedPolicy | None, cluster: list[ClusterPolicy]) -> Iterator[_Layer]:
    if winner:
        yield Source(winner.key), winner.settings
    for policy in cluster:
        yield Source(f"{policy.key}#defaults"), policy.defaults


def _limits(cluster: list[ClusterPolicy], budget: Budget) -> Iterator[_Layer]:
    for policy in cluster:
        yield Source(f"{policy.key}#limits"), policy.limits
    for name, value in (("hostMemory", budget.host_memory), ("localDisk", budget.local_disk)):
        if value is not None:
            yield budget.sources[name], {_BUDGETED[name]: value}


def _cluster_source(cluster: list[ClusterPolicy]) -> Source:
    return next((Source(item.key) for item in cluster if item.defaults), BUILT_IN)


def _first(rule: FieldRule, layers: list[_Layer]) -> tuple[Value, Source]:
    for source, settings in layers:
        if rule.path in settings:
            return settings[rule.path], source
    return rule.built_in, BUILT_IN


def _cut(
    rule: FieldRule, value: Value, source: Source, limits: list[_Layer]
) -> tuple[Value, FieldSource]:
    """Return the value after all limits, and who set it."""
    cut, cutter = value, source
    for limiter, settings in limits:
        narrower = clamp(rule, cut, settings.get(rule.path))
        if narrower != cut:
            cut, cutter = narrower, limiter
    if source in {cutter, BUILT_IN}:
        # Nobody chose a built-in value, so nobody is told that it was cut.
        return cut, FieldSource(source=cutter)
    return cut, FieldSource(source=cutter, clamped_from=text_of(rule, value), clamped_source=source)


def _fit_minimum(values: dict[str, Value], sources: dict[str, FieldSource]) -> None:
    """Lower ``minTokens`` to ``maxTokens``: they may come from two policies.

    A limit that an admin lowers should lower loads, not end them.
    """
    smallest, largest = values[fields.LOAD_MIN_TOKENS], values[fields.LOAD_MAX_TOKENS]
    assert isinstance(smallest, int)
    if largest is None or (isinstance(largest, int) and smallest <= largest):
        return
    rule, source = RULE_OF[fields.LOAD_MIN_TOKENS], sources[fields.LOAD_MIN_TOKENS].source
    values[rule.path] = largest
    sources[rule.path] = FieldSource(
        source=sources[fields.LOAD_MAX_TOKENS].source,
        clamped_from=text_of(rule, smallest),
        clamped_source=source,
    )
