"""What policies are compiled for and from, as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Self

from kvoffload_api.models.clusterpolicy import ClusterKVOffloadPolicy, ClusterKVOffloadPolicySpec
from kvoffload_api.models.policy import KVOffloadPolicy, KVOffloadPolicySpec
from kvoffload_api.models.selector import Labels, Selector
from kvoffload_api.models.types import Mode
from kvoffload_api.names import (
    NodeName,
    PodUID,
    PolicyKey,
    cluster_policy_key,
    policy_key,
)
from kvoffload_api.quantity import parse_quantity
from kvoffload_api.resolution import fields
from kvoffload_api.resolution.fields import Value, settings_of

# The API server puts this label on every namespace.
_NAME_LABEL = "kubernetes.io/metadata.name"


def _selects(selector: Selector | None, labels: Labels) -> bool:
    return selector is None or selector.matches(labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """An engine pod.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid.
        labels: Its labels.
        namespace_labels: Labels of its namespace.
    """

    namespace: str
    name: str
    uid: PodUID
    labels: Labels
    namespace_labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node.

    Attributes:
        name: Its name.
        labels: Its labels.
    """

    name: NodeName
    labels: Labels


Rank = tuple[int, datetime, str, str]


@dataclass(frozen=True, kw_only=True)
class NamespacedPolicy:
    """A KVOffloadPolicy.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        created: Its ``metadata.creationTimestamp``.
        spec: Its spec.
    """

    namespace: str
    name: str
    created: datetime
    spec: KVOffloadPolicySpec

    @classmethod
    def of(cls, policy: KVOffloadPolicy) -> Self:
        """Return the view of an object."""
        meta = policy.metadata
        return cls(
            namespace=meta.namespace,
            name=meta.name,
            created=meta.creation_timestamp,
            spec=policy.spec,
        )

    @property
    def key(self) -> PolicyKey:
        """Its name in provenance and messages."""
        return policy_key(namespace=self.namespace, name=self.name)

    @property
    def rank(self) -> Rank:
        """Sorts policies, the winning one first: priority, then age, then name."""
        return (-self.spec.priority, self.created, self.namespace, self.name)

    @cached_property
    def settings(self) -> Mapping[str, Value]:
        """What it sets, by path. ``Disabled`` sets both caps to 0."""
        if self.spec.mode is Mode.DISABLED:
            return {fields.LOAD_MAX_TOKENS: 0, fields.STORE_MAX_TOKENS: 0}
        return settings_of(self.spec)

    def selects(self, pod: PodView) -> bool:
        """Tell whether it is for a pod."""
        return pod.namespace == self.namespace and _selects(self.spec.pod_selector, pod.labels)


@dataclass(frozen=True, kw_only=True)
class ClusterPolicy:
    """A ClusterKVOffloadPolicy.

    Attributes:
        name: Its name.
        created: Its ``metadata.creationTimestamp``.
        spec: Its spec.
    """

    name: str
    created: datetime
    spec: ClusterKVOffloadPolicySpec

    @classmethod
    def of(cls, policy: ClusterKVOffloadPolicy) -> Self:
        """Return the view of an object."""
        meta = policy.metadata
        return cls(name=meta.name, created=meta.creation_timestamp, spec=policy.spec)

    @property
    def key(self) -> PolicyKey:
        """Its name in provenance and messages."""
        return cluster_policy_key(name=self.name)

    @property
    def rank(self) -> Rank:
        """Sorts policies, the first one first: priority, then age, then name."""
        return (-self.spec.priority, self.created, "", self.name)

    @cached_property
    def defaults(self) -> Mapping[str, Value]:
        """Its defaults, by path."""
        return settings_of(self.spec.defaults)

    @cached_property
    def limits(self) -> Mapping[str, Value]:
        """Its limits, by path."""
        return settings_of(self.spec.limits)

    @cached_property
    def budget(self) -> Mapping[str, int]:
        """Its node budget in bytes by the field's name, such as ``hostMemory``."""
        given = self.spec.node_budget.document() if self.spec.node_budget else {}
        return {name: parse_quantity(text) for name, text in given.items()}

    def selects_node(self, node: NodeView) -> bool:
        """Tell whether it is for a node."""
        return _selects(self.spec.node_selector, node.labels)

    def selects(self, pod: PodView, node: NodeView) -> bool:
        """Tell whether it is for a pod on a node."""
        namespace_labels = {**pod.namespace_labels, _NAME_LABEL: pod.namespace}
        return (
            self.selects_node(node)
            and _selects(self.spec.pod_selector, pod.labels)
            and _selects(self.spec.namespace_selector, namespace_labels)
        )


@dataclass(frozen=True, kw_only=True)
class PolicySet:
    """All policies at one moment, in any order.

    Attributes:
        namespaced: The KVOffloadPolicies that are valid.
        cluster: The ClusterKVOffloadPolicies that are valid.
    """

    namespaced: tuple[NamespacedPolicy, ...] = ()
    cluster: tuple[ClusterPolicy, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        namespaced: Iterable[KVOffloadPolicy] = (),
        cluster: Iterable[ClusterKVOffloadPolicy] = (),
    ) -> Self:
        """Return the set of these objects."""
        return cls(
            namespaced=tuple(NamespacedPolicy.of(policy) for policy in namespaced),
            cluster=tuple(ClusterPolicy.of(policy) for policy in cluster),
        )

    @cached_property
    def by_namespace(self) -> Mapping[str, tuple[NamespacedPolicy, ...]]:
        """The policies of each namespace, ranked."""
        found: dict[str, list[NamespacedPolicy]] = {}
        for policy in sorted(self.namespaced, key=lambda item: item.rank):
            found.setdefault(policy.namespace, []).append(policy)
        return {namespace: tuple(items) for namespace, items in found.items()}

    @cached_property
    def ranked_cluster(self) -> tuple[ClusterPolicy, ...]:
        """The cluster policies, ranked."""
        return tuple(sorted(self.cluster, key=lambda item: item.rank))

    def selecting(self, pod: PodView) -> tuple[NamespacedPolicy, ...]:
        """Return the namespaced policies that select a pod, ranked, in every mode."""
        candidates = self.by_namespace.get(pod.namespace, ())
        return tuple(policy for policy in candidates if policy.selects(pod))

    def winner(self, pod: PodView) -> NamespacedPolicy | None:
        """Return the policy that is in force for a pod; a ``DryRun`` one never is."""
        for policy in self.selecting(pod):
            if policy.spec.mode is not Mode.DRY_RUN:
                return policy
        return None
