"""A policy that is applied with kubectl reaches the KVOffloadNode of every engine pod's node."""

from __future__ import annotations

import pytest
from tests.integration.operator.conftest import Cluster, wait_for

pytestmark = pytest.mark.cluster


def test_every_node_gets_a_kvoffloadnode_that_it_owns(cluster: Cluster) -> None:
    live = cluster.offload_node()
    node = cluster.get("node", cluster.node)

    [owner] = live["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "Node",
        cluster.node,
        node["metadata"]["uid"],
    )
    assert live["spec"]["hash"]


def test_a_node_that_is_deleted_takes_its_kvoffloadnode_with_it(cluster: Cluster) -> None:
    cluster.offload_node()
    cluster.plane.delete(f"/api/v1/nodes/{cluster.node}")

    def gone() -> bool:
        found = cluster.plane.kubectl("get", "kvon", cluster.node, check=False)
        return found.returncode != 0

    wait_for(gone, what="garbage collection", deadline_s=60)


def test_without_any_policy_a_pod_gets_the_built_ins(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    entry = cluster.wait_entry(uid, lambda _entry: True)

    assert "maxTokens" not in entry.get("load", {})
    assert "maxTokens" not in entry.get("store", {})


def test_a_namespaced_policy_beats_the_cluster_default_and_its_removal_returns_to_it(
    cluster: Cluster,
) -> None:
    uid = cluster.engine("vllm-0", app="vllm")
    cluster.cluster_policy("default", {"defaults": {"load": {"maxTokens": 32768}}})
    entry = cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 32768)
    [source] = [p["source"] for p in entry["provenance"] if p["field"] == "load.maxTokens"]
    assert source.startswith("ClusterKVOffloadPolicy/default")

    cluster.policy(
        "chat", {"podSelector": {"matchLabels": {"app": "vllm"}}, "load": {"maxTokens": 8192}}
    )
    entry = cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 8192)
    [source] = [p["source"] for p in entry["provenance"] if p["field"] == "load.maxTokens"]
    assert source == f"KVOffloadPolicy/{cluster.namespace}/chat"

    cluster.plane.kubectl("delete", "kvop", "chat", "-n", cluster.namespace)
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 32768)

    cluster.plane.kubectl("delete", "ckvop", "default")
    cluster.wait_entry(uid, lambda entry: "maxTokens" not in entry.get("load", {}))


def test_a_limit_clamps_a_tenant_and_the_entry_says_from_what(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.cluster_policy("default", {"limits": {"load": {"maxTokens": 1000}}})
    cluster.policy("greedy", {"load": {"maxTokens": 5000}})
    entry = cluster.wait_entry(
        uid,
        lambda entry: any(
            item.get("clampedFrom") and item["field"] == "load.maxTokens"
            for item in entry["provenance"]
        ),
    )

    assert entry["load"]["maxTokens"] == 1000


def test_the_node_budget_of_the_cluster_policy_is_the_node_s(cluster: Cluster) -> None:
    cluster.cluster_policy(
        "default", {"nodeBudget": {"hostMemory": "512Gi", "reservedMemory": "64Gi"}}
    )

    def budget() -> bool:
        found = cluster.offload_node()["spec"].get("budget", {})
        return bool(found.get("hostMemory") == "512Gi" and found.get("reservedMemory") == "64Gi")

    wait_for(budget, what="the budget on the node")


def test_a_pod_that_ends_leaves_the_node(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.wait_entry(uid, lambda _entry: True)
    cluster.plane.delete_pod(name="vllm-0", namespace=cluster.namespace)

    wait_for(lambda: cluster.entry(uid) is None, what="the pod to leave")


def test_a_pod_without_the_label_is_none_of_our_business(cluster: Cluster) -> None:
    pod = cluster.plane.create_pod(name="web", namespace=cluster.namespace, node=cluster.node)
    uid = cluster.engine("vllm-0")
    cluster.wait_entry(uid, lambda _entry: True)

    assert cluster.entry(pod["metadata"]["uid"]) is None


def test_a_namespace_whose_labels_change_is_judged_again(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.cluster_policy(
        "gold",
        {
            "namespaceSelector": {"matchLabels": {"tier": "gold"}},
            "defaults": {"load": {"maxTokens": 77}},
        },
    )
    cluster.wait_entry(uid, lambda entry: "maxTokens" not in entry.get("load", {}))
    cluster.plane.kubectl("label", "namespace", cluster.namespace, "tier=gold")
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 77)


def test_an_edited_spec_is_put_right(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.cluster_policy("default", {"defaults": {"load": {"maxTokens": 64}}})
    entry = cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 64)
    cluster.plane.kubectl(
        "patch",
        "kvon",
        cluster.node,
        "--type=merge",
        "-p",
        '{"spec": {"hash": "0000000000000000"}}',
    )
    wait_for(
        lambda: cluster.offload_node()["spec"]["hash"] != "0000000000000000", what="the repair"
    )
    assert cluster.entry(uid) == entry
