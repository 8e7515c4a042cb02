"""Everything a decision reads, in memory, and which keys each change concerns.

No I/O: informers put objects in, reconcilers read, and ``enqueue`` is told what to look at again.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from kvoffload_api.models import ClusterKVOffloadPolicy, KVOffloadPolicy
from kvoffload_api.names import NodeName, PodUID, policy_key
from kvoffload_api.resolution import NodeView, PodView, PolicySet
from kvoffload_operator.compilation import NodeCompiler
from kvoffload_operator.facts import (
    NamespaceFacts,
    NodeFacts,
    PodFacts,
    PoolsFacts,
    namespace_facts,
    node_facts,
    pod_facts,
    pools_facts,
    without_bookkeeping,
)
from kvoffload_operator.kube.store import ObjectKey, Store
from kvoffload_operator.plan import NodePlan
from kvoffload_operator.policyfacts import PolicyFacts, cluster_policy_facts, policy_facts
from kvoffload_operator.queue import Lane
from kvoffload_operator.reconcile.keys import AGENTS_KEY, Key, Kind

Json = Mapping[str, Any]
Enqueue = Callable[[Key, Lane], None]


class World:
    """The cluster as this operator sees it.

    Args:
        enqueue: Called with each key that a change concerns.
        node_selector: Labels of the nodes to configure; empty for every node.
        follow_pools: Whether a ConfigMap of agent pools says instead which nodes to configure.
    """

    def __init__(
        self, *, enqueue: Enqueue, node_selector: Mapping[str, str], follow_pools: bool = False
    ) -> None:
        self._enqueue = enqueue
        self._node_selector = dict(node_selector)
        self.nodes: Store[NodeFacts] = Store(parse=node_facts, changed=self._node_changed)
        self.namespaces: Store[NamespaceFacts] = Store(
            parse=namespace_facts, changed=self._namespace_changed
        )
        self.pods: Store[PodFacts] = Store(parse=pod_facts, changed=self._pod_changed)
        self.offload_nodes: Store[Json] = Store(
            parse=without_bookkeeping, changed=self._offload_node_changed
        )
        self.policies: Store[PolicyFacts] = Store(parse=policy_facts, changed=self._policy_changed)
        self.cluster_policies: Store[PolicyFacts] = Store(
            parse=cluster_policy_facts, changed=self._cluster_policy_changed
        )
        self.pools_config: Store[PoolsFacts] = Store(parse=pools_facts, changed=self._pools_changed)
        self.daemonsets: Store[Json] = Store(
            parse=without_bookkeeping,
            changed=lambda _key, _old, _new: self._enqueue(AGENTS_KEY, self.lane),
        )
        self._follow_pools = follow_pools
        self._pools: PoolsFacts | None = None
        self._pods_of: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        # Of each namespace, how many of its pods are on which node.
        self._pods_in: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._policies_in: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._plans: dict[str, NodePlan] = {}
        self._stale: set[str] = set()
        self._compiler: NodeCompiler | None = None
        self._nodes_of: defaultdict[Key, set[str]] = defaultdict(set)
        self.lane = Lane.RESYNC

    def selects(self, node: NodeFacts) -> bool:
        """Whether this operator configures the node."""
        pools = self._pools.config.pools if self._pools and self._pools.config else ()
        if pools and not node.deleting:
            # A node without an agent would stay stale for ever.
            return any(pool.selects(node.labels) for pool in pools)
        return not node.deleting and all(
            node.labels.get(key) == value for key, value in self._node_selector.items()
        )

    @property
    def pools_known(self) -> bool:
        """Whether it is certain which nodes to configure."""
        return not self._follow_pools or self._pools is not None

    @property
    def pools(self) -> PoolsFacts | None:
        """The ConfigMap of the agent pools as it is now, if there is one."""
        return next(iter(self.pools_config.values()), None)

    def plan(self, name: str) -> NodePlan | None:
        """Return what the node's configuration should be, ``None`` for a node not configured."""
        self._refresh()
        return self._plans.get(name)

    def plans_of(self, policy: Key) -> dict[str, NodePlan]:
        """Return the plans of every node that a policy has to do with, by the node's name."""
        self._refresh()
        return {name: self._plans[name] for name in sorted(self._nodes_of.get(policy, ()))}

    def enqueue_all(self) -> None:
        """Have every object looked at again, without haste."""
        for key in self.nodes.all_keys():
            self._enqueue(Key(kind=Kind.NODE, name=key.name), Lane.RESYNC)
        for key in self.offload_nodes.all_keys():
            self._enqueue(Key(kind=Kind.NODE, name=key.name), Lane.RESYNC)
        if self._follow_pools:
            self._enqueue(AGENTS_KEY, Lane.RESYNC)
        for key in self.policies.all_keys():
            self._enqueue(_policy_key(key), Lane.RESYNC)
        for key in self.cluster_policies.all_keys():
            self._enqueue(Key(kind=Kind.CLUSTER_POLICY, name=key.name), Lane.RESYNC)

    def node_states(self) -> Mapping[str, int]:
        """Return how many configured nodes have their configuration in force, and how many not."""
        counts = Counter({"current": 0, "stale": 0})
        for name, plan in self._plans.items():
            live = self.offload_nodes.get(name=name) or {}
            applied = (live.get("status") or {}).get("appliedHash")
            counts["current" if applied == plan.hash else "stale"] += 1
        return counts

    def policy_conditions(self) -> Mapping[tuple[str, str], int]:
        """Return how many policies have a condition in a status, by both."""
        counts: Counter[tuple[str, str]] = Counter()
        for store in (self.policies, self.cluster_policies):
            for facts in store.values():
                for item in facts.status.get("conditions") or ():
                    counts[item["type"], item["status"]] += 1
        return counts

    def conflict(self, policy: Key) -> str:
        """Return the older policy that a policy can never win against, or an empty string."""
        if policy.kind is not Kind.POLICY:
            return ""
        return self._compiled().conflict(policy_key(namespace=policy.namespace, name=policy.name))

    def _compiled(self) -> NodeCompiler:
        if self._compiler is None:
            namespaced = [facts.model for facts in self.policies.values()]
            cluster = [facts.model for facts in self.cluster_policies.values()]
            self._compiler = NodeCompiler(
                PolicySet.of(
                    namespaced=[item for item in namespaced if isinstance(item, KVOffloadPolicy)],
                    cluster=[item for item in cluster if isinstance(item, ClusterKVOffloadPolicy)],
                )
            )
        return self._compiler

    def _refresh(self) -> None:
        """Compute the plan of every node whose inputs changed."""
        stale, self._stale = self._stale, set()
        for name in stale:
            node = self.nodes.get(name=name)
            if node is None or not self.selects(node):
                self._keep(name, None)
                continue
            view = NodeView(name=NodeName(name), labels=node.labels)
            self._keep(name, self._compiled().plan(node=view, pods=self._pods_on(name)))

    def _pods_on(self, node: str) -> list[PodView]:
        found = []
        for key in sorted(self._pods_of.get(node, ())):
            pod = self.pods.get(namespace=key.namespace, name=key.name)
            namespace = self.namespaces.get(name=key.namespace)
            # Without the namespace's labels a limit might not be seen to apply: the pod must wait.
            if pod is not None and namespace is not None:
                found.append(
                    PodView(
                        namespace=key.namespace,
                        name=key.name,
                        uid=PodUID(pod.uid),
                        labels=pod.labels,
                        namespace_labels=namespace.labels,
                    )
                )
        return found

    def _keep(self, name: str, plan: NodePlan | None) -> None:
        old = self._plans.pop(name, None)
        if plan is not None:
            self._plans[name] = plan
        before = old.policies if old is not None else frozenset()
        after = plan.policies if plan is not None else frozenset()
        for policy in before - after:
            self._nodes_of[policy].discard(name)
        for policy in after - before:
            self._nodes_of[policy].add(name)
        if old != plan:
            for policy in before | after:
                self._enqueue(policy, self.lane)

    def _touch(self, node: str) -> None:
        self._stale.add(node)
        self._enqueue(Key(kind=Kind.NODE, name=node), self.lane)

    def _touch_nodes_of(self, namespace: str) -> None:
        for node in list(self._pods_in.get(namespace, ())):
            self._touch(node)

    def _node_changed(self, key: ObjectKey, _old: NodeFacts | None, _new: NodeFacts | None) -> None:
        self._touch(key.name)

    def _pools_changed(
        self, _key: ObjectKey, _old: PoolsFacts | None, new: PoolsFacts | None
    ) -> None:
        self._enqueue(AGENTS_KEY, self.lane)
        # A wrong or vanished ConfigMap changes nothing about the nodes that are configured.
        if new is not None and new.config is not None:
            self._pools = new
            for node in self.nodes.all_keys():
                self._touch(node.name)

    def _namespace_changed(self, key: ObjectKey, _old: object, _new: object) -> None:
        self._touch_nodes_of(key.name)

    def _pod_changed(self, key: ObjectKey, old: PodFacts | None, new: PodFacts | None) -> None:
        if old is not None:
            self._pods_of[old.node].discard(key)
            self._count_pod(key.namespace, old.node, -1)
        if new is not None:
            self._pods_of[new.node].add(key)
            self._count_pod(key.namespace, new.node, 1)
        for node in {facts.node for facts in (old, new) if facts is not None}:
            self._touch(node)

    def _count_pod(self, namespace: str, node: str, change: int) -> None:
        counts = self._pods_in[namespace]
        counts[node] += change
        if counts[node] <= 0:
            del counts[node]

    def _offload_node_changed(self, key: ObjectKey, _old: object, _new: object) -> None:
        self._enqueue(Key(kind=Kind.NODE, name=key.name), self.lane)
        plan = self._plans.get(key.name)
        for policy in plan.policies if plan is not None else ():
            self._enqueue(policy, self.lane)

    def _policy_changed(
        self, key: ObjectKey, old: PolicyFacts | None, new: PolicyFacts | None
    ) -> None:
        self._enqueue(_policy_key(key), self.lane)
        if old is not None and new is not None and old.same_spec(new):
            return
        self._compiler = None
        self._touch_nodes_of(key.namespace)
        # Who shares the namespace may win or lose by it.
        siblings = self._policies_in[key.namespace]
        if new is None:
            siblings.discard(key)
        else:
            siblings.add(key)
        for other in siblings:
            self._enqueue(_policy_key(other), self.lane)

    def _cluster_policy_changed(
        self, key: ObjectKey, old: PolicyFacts | None, new: PolicyFacts | None
    ) -> None:
        self._enqueue(Key(kind=Kind.CLUSTER_POLICY, name=key.name), self.lane)
        if old is not None and new is not None and old.same_spec(new):
            return
        self._compiler = None
        for other in self.nodes.all_keys():
            self._touch(other.name)


def _policy_key(key: ObjectKey) -> Key:
    return Key(kind=Kind.POLICY, namespace=key.namespace, name=key.name)
