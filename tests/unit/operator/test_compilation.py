"""From policies, nodes and pods to the plan of each node."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvoffload_api.models import MAX_ENTRIES, MAX_PODS, KVOffloadNodeSpec
from kvoffload_operator.plan import NodePlan
from kvoffload_operator.queue import Lane
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.world import World

Json = dict[str, Any]


class Cluster:
    """A world that objects are put into, and the keys that it asked to look at."""

    def __init__(self, **node_selector: str) -> None:
        self.enqueued: set[Key] = set()
        self.world = World(enqueue=self._enqueue, node_selector=node_selector)
        self.version = 0

    def _enqueue(self, key: Key, _lane: Lane) -> None:
        self.enqueued.add(key)

    def meta(self, name: str, namespace: str = "", **more: Any) -> Json:
        self.version += 1
        return {
            "name": name,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": str(self.version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "generation": self.version,
            **({"namespace": namespace} if namespace else {}),
            **more,
        }

    def node(self, name: str, **labels: str) -> None:
        self.world.nodes.put({"metadata": self.meta(name, labels=labels)})

    def namespace(self, name: str, **labels: str) -> None:
        self.world.namespaces.put({"metadata": self.meta(name, labels=labels)})

    def pod(self, name: str, *, node: str = "n1", namespace: str = "a", **labels: str) -> None:
        item = {"metadata": self.meta(name, namespace, labels=labels), "spec": {"nodeName": node}}
        self.world.pods.put(item)

    def policy(self, name: str, spec: Json, *, namespace: str = "a", **meta: Any) -> Key:
        self.world.policies.put({"metadata": self.meta(name, namespace, **meta), "spec": spec})
        return Key(kind=Kind.POLICY, namespace=namespace, name=name)

    def cluster_policy(self, name: str, spec: Json) -> Key:
        self.world.cluster_policies.put({"metadata": self.meta(name), "spec": spec})
        return Key(kind=Kind.CLUSTER_POLICY, name=name)

    def plan(self, name: str = "n1") -> NodePlan:
        plan = self.world.plan(name)
        assert plan is not None
        KVOffloadNodeSpec.parse(plan.spec)
        return plan

    def entry(self, pod: str, *, namespace: str = "a", node: str = "n1") -> Json | None:
        spec = self.plan(node).spec
        by_name = {(item["namespace"], item["name"]): item["entry"] for item in spec["pods"]}
        return {item["hash"]: item for item in spec["entries"]}.get(by_name.get((namespace, pod)))


def one_pod() -> Cluster:
    cluster = Cluster()
    cluster.namespace("a")
    cluster.node("n1")
    cluster.pod("p", app="vllm")
    return cluster


def test_a_node_without_pods_and_policies_has_an_empty_plan_with_a_hash() -> None:
    cluster = Cluster()
    cluster.node("n1")

    assert cluster.plan().spec["pods"] == cluster.plan().spec["entries"] == []
    assert "budget" not in cluster.plan().spec


def test_a_node_that_the_flag_does_not_select_has_no_plan() -> None:
    cluster = Cluster(pool="gpu")
    cluster.node("n1", pool="cpu")
    cluster.node("n2", pool="gpu")

    assert cluster.world.plan("n1") is None
    assert cluster.world.plan("n2") is not None


def test_a_node_that_is_being_deleted_has_no_plan() -> None:
    cluster = Cluster()
    item = {"metadata": cluster.meta("n1", deletionTimestamp="2026-01-01T00:00:00Z")}
    cluster.world.nodes.put(item)

    assert cluster.world.plan("n1") is None


def test_pods_that_get_the_same_share_one_entry() -> None:
    cluster = one_pod()
    cluster.pod("q", app="vllm", **{"pod-index": "1"})

    assert len(cluster.plan().spec["entries"]) == 1
    assert len(cluster.plan().spec["pods"]) == 2


def test_pods_of_two_namespaces_never_share_an_entry_because_their_bytes_are_apart() -> None:
    cluster = one_pod()
    cluster.namespace("b")
    cluster.pod("p", namespace="b", app="vllm")

    assert cluster.entry("p") != cluster.entry("p", namespace="b")


def test_a_pod_of_an_unknown_namespace_waits() -> None:
    cluster = Cluster()
    cluster.node("n1")
    cluster.pod("p")
    assert cluster.entry("p") is None
    cluster.namespace("a")

    assert cluster.entry("p") is not None


def test_the_winner_brings_the_entry_about_and_the_loser_names_it() -> None:
    cluster = one_pod()
    weak = cluster.policy("weak", {"priority": 1, "load": {"maxTokens": 1}})
    strong = cluster.policy("strong", {"priority": 2, "load": {"maxTokens": 2}})
    shares = cluster.plan().shares

    assert shares[strong].entries
    assert not shares[weak].entries
    assert shares[weak].lost_to == {"a/strong"}


def test_a_dry_run_policy_is_in_no_entry_but_its_would_be_block_is_known() -> None:
    cluster = one_pod()
    key = cluster.policy("try", {"mode": "DryRun", "load": {"maxTokens": 3}})
    plan = cluster.plan()
    [would_be] = plan.shares[key].would_be

    assert "maxTokens" not in (cluster.entry("p") or {})["load"]
    assert plan.blocks[would_be]["load"]["maxTokens"] == 3
    assert would_be not in {item["hash"] for item in plan.spec["entries"]}


def test_a_cluster_policy_with_only_a_budget_has_to_do_with_every_node_it_selects() -> None:
    cluster = Cluster()
    cluster.node("n1", pool="gpu")
    cluster.node("n2")
    selector = {"matchLabels": {"pool": "gpu"}}
    key = cluster.cluster_policy(
        "default", {"nodeSelector": selector, "nodeBudget": {"hostMemory": "1Gi"}}
    )

    assert cluster.plan("n1").spec["budget"] == {"hostMemory": "1Gi"}
    assert set(cluster.world.plans_of(key)) == {"n1"}
    assert cluster.plan("n1").shares[key].active


def test_more_pods_than_the_object_holds_are_left_out_and_named() -> None:
    cluster = Cluster()
    cluster.namespace("a")
    cluster.node("n1")
    for number in range(MAX_PODS + 2):
        cluster.pod(f"p{number:03}")

    assert cluster.plan().left_out == (f"a/p{MAX_PODS}", f"a/p{MAX_PODS + 1}")


def test_more_entries_than_the_object_holds_leave_their_pods_out() -> None:
    cluster = Cluster()
    cluster.node("n1")
    for number in range(MAX_ENTRIES + 1):
        cluster.namespace(f"ns{number:03}")
        cluster.pod("p", namespace=f"ns{number:03}")
    cluster.pod("q", namespace="ns000")

    assert cluster.plan().left_out == (f"ns{MAX_ENTRIES:03}/p",)
    assert cluster.entry("q", namespace="ns000") is not None


def test_an_invalid_policy_changes_nothing_and_says_why() -> None:
    cluster = one_pod()
    before = cluster.plan().spec
    cluster.policy("broken", {"load": {"maxTokens": -1}})
    facts = cluster.world.policies.get(namespace="a", name="broken")

    assert cluster.plan().spec == before
    assert facts is not None
    assert "load.maxTokens" in facts.error


def test_a_policy_change_concerns_the_nodes_with_pods_of_its_namespace_and_its_siblings() -> None:
    cluster = one_pod()
    cluster.node("n2")
    older = cluster.policy("older", {"load": {"maxTokens": 1}})
    cluster.plan()
    cluster.enqueued.clear()
    younger = cluster.policy("younger", {"load": {"maxTokens": 2}})

    assert cluster.enqueued == {older, younger, Key(kind=Kind.NODE, name="n1")}


def test_a_new_status_of_a_policy_concerns_only_the_policy() -> None:
    cluster = one_pod()
    item = {"metadata": cluster.meta("p", "a", generation=1), "spec": {"load": {"maxTokens": 1}}}
    cluster.world.policies.put(item)
    cluster.plan()
    cluster.enqueued.clear()
    metadata = {**item["metadata"], "resourceVersion": "999"}
    cluster.world.policies.put({**item, "metadata": metadata, "status": {"nodes": {}}})

    assert cluster.enqueued == {Key(kind=Kind.POLICY, namespace="a", name="p")}


def test_a_moved_label_of_a_node_changes_only_that_node() -> None:
    cluster = one_pod()
    cluster.cluster_policy(
        "gpu",
        {"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "defaults": {"load": {"maxTokens": 5}}},
    )
    assert (cluster.entry("p") or {})["load"].get("maxTokens") is None
    cluster.plan()
    cluster.enqueued.clear()
    cluster.node("n1", pool="gpu")

    assert cluster.enqueued == {Key(kind=Kind.NODE, name="n1")}
    assert (cluster.entry("p") or {})["load"]["maxTokens"] == 5


def test_a_pod_that_moves_leaves_its_old_node() -> None:
    cluster = one_pod()
    cluster.node("n2")
    cluster.pod("p", node="n2", app="vllm")

    assert cluster.entry("p", node="n1") is None
    assert cluster.entry("p", node="n2") is not None


def test_deleting_the_winner_promotes_the_loser() -> None:
    cluster = one_pod()
    weak = cluster.policy("weak", {"priority": 1, "load": {"maxTokens": 1}})
    cluster.policy("strong", {"priority": 2, "load": {"maxTokens": 2}})
    cluster.plan()
    [strong] = [key for key in cluster.world.policies.all_keys() if key.name == "strong"]
    cluster.world.policies.drop(strong)

    assert cluster.plan().shares[weak].entries
    assert (cluster.entry("p") or {})["load"]["maxTokens"] == 1


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_in_which_objects_arrive_makes_no_difference(rng: random.Random) -> None:
    def steps(cluster: Cluster) -> list[Any]:
        return [
            lambda: cluster.namespace("a", tier="gold"),
            lambda: cluster.namespace("b"),
            lambda: cluster.node("n1", pool="gpu"),
            lambda: cluster.pod("p", app="vllm"),
            lambda: cluster.pod("q", namespace="b", app="vllm"),
            lambda: cluster.policy("x", {"load": {"maxTokens": 3}}, generation=1),
            lambda: cluster.policy("y", {"priority": 5, "load": {"maxTokens": 4}}, generation=1),
            lambda: cluster.policy("z", {"mode": "Disabled"}, namespace="b", generation=1),
            lambda: cluster.cluster_policy("c", {"limits": {"load": {"maxTokens": 2}}}),
            lambda: cluster.cluster_policy(
                "d",
                {
                    "namespaceSelector": {"matchLabels": {"tier": "gold"}},
                    "defaults": {"store": {"maxTokens": 9}},
                    "nodeBudget": {"hostMemory": "2Gi"},
                },
            ),
        ]

    straight, shuffled = Cluster(), Cluster()
    for step in steps(straight):
        step()
    mixed = steps(shuffled)
    rng.shuffle(mixed)
    for step in mixed:
        step()
        # Looking in between must not matter either.
        shuffled.world.plan("n1")

    assert shuffled.plan() == straight.plan()
