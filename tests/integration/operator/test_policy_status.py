"""What ``kubectl get`` and ``kubectl wait`` say about a policy."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.controlplane import KubectlError
from tests.integration.operator.conftest import Cluster, wait_for

pytestmark = pytest.mark.cluster


def condition(policy: dict[str, Any], kind: str) -> dict[str, Any]:
    [found] = [
        item for item in policy.get("status", {}).get("conditions", []) if item["type"] == kind
    ] or [{}]
    return found


def test_wait_for_ready_works_after_create_and_after_change(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.policy("chat", {"load": {"maxTokens": 8192}})
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 8192)
    with pytest.raises(KubectlError, match="timed out"):
        cluster.wait_ready("kvop/chat", namespace=cluster.namespace, deadline="1s")
    cluster.acknowledge()
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)

    cluster.policy("chat", {"load": {"maxTokens": 4096}})
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 4096)

    def reconciling() -> bool:
        ready = condition(cluster.get("kvop", "chat", namespace=cluster.namespace), "Ready")
        return ready.get("status") == "False" and ready["observedGeneration"] == 2

    wait_for(reconciling, what="Ready=False for the new generation")
    cluster.acknowledge()
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    policy = cluster.get("kvop", "chat", namespace=cluster.namespace)
    assert policy["status"]["observedGeneration"] == policy["metadata"]["generation"] == 2
    assert policy["status"]["nodes"] == {"selected": 1, "current": 1, "stale": 0, "failed": 0}
    [effective] = policy["status"]["effective"]
    assert effective["load"]["maxTokens"] == 4096
    assert {"field": "load.maxTokens", "source": f"KVOffloadPolicy/{cluster.namespace}/chat"} in [
        {"field": item["field"], "source": item["source"]} for item in effective["provenance"]
    ]


def test_kubectl_get_shows_ready_and_reason_of_all_three_kinds(cluster: Cluster) -> None:
    cluster.engine("vllm-0")
    cluster.cluster_policy("default", {"defaults": {"load": {"maxTokens": 100}}})
    cluster.policy("chat", {"load": {"maxTokens": 50}})
    cluster.wait_entry(
        cluster.get("pod", "vllm-0", namespace=cluster.namespace)["metadata"]["uid"],
        lambda entry: entry.get("load", {}).get("maxTokens") == 50,
    )
    cluster.acknowledge()
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    cluster.wait_ready("ckvop/default")
    shown = cluster.plane.kubectl("get", "kvop,ckvop,kvon", "-A").stdout

    assert shown.count("READY") == shown.count("REASON") == 3
    [chat] = [line for line in shown.splitlines() if "/chat" in line]
    assert "True" in chat
    assert "Programmed" in chat


def test_a_policy_that_matches_no_pod_is_ready_and_says_so(cluster: Cluster) -> None:
    cluster.policy(
        "lonely", {"podSelector": {"matchLabels": {"app": "none"}}, "load": {"maxTokens": 1}}
    )
    cluster.wait_ready("kvop/lonely", namespace=cluster.namespace)

    ready = condition(cluster.get("kvop", "lonely", namespace=cluster.namespace), "Ready")
    assert ready["reason"] == "NoMatchingPods"


def test_the_loser_is_overridden_and_names_the_winner_and_is_promoted_when_it_goes(
    cluster: Cluster,
) -> None:
    uid = cluster.engine("vllm-0", app="vllm")
    cluster.policy("weak", {"priority": 1, "load": {"maxTokens": 11}})
    cluster.policy("strong", {"priority": 2, "load": {"maxTokens": 22}})
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 22)

    def overridden() -> bool:
        found = condition(cluster.get("kvop", "weak", namespace=cluster.namespace), "Programmed")
        return found.get("reason") == "Overridden" and "strong" in found["message"]

    wait_for(overridden, what="Overridden")
    cluster.plane.kubectl("delete", "kvop", "strong", "-n", cluster.namespace)
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 11)
    cluster.acknowledge()
    cluster.wait_ready("kvop/weak", namespace=cluster.namespace)


def test_of_two_policies_with_one_selector_the_younger_is_not_accepted(cluster: Cluster) -> None:
    cluster.policy("a-older", {"load": {"maxTokens": 11}})
    cluster.policy("b-younger", {"load": {"maxTokens": 22}})

    def conflicted() -> bool:
        found = condition(cluster.get("kvop", "b-younger", namespace=cluster.namespace), "Accepted")
        return found.get("reason") == "Conflicted" and "a-older" in found["message"]

    wait_for(conflicted, what="Conflicted")
    cluster.wait_ready("kvop/a-older", namespace=cluster.namespace)


def test_a_dry_run_enforces_nothing_and_shows_what_it_would_do(cluster: Cluster) -> None:
    uid = cluster.engine("vllm-0")
    cluster.policy("try", {"mode": "DryRun", "load": {"maxTokens": 33}})
    cluster.wait_ready("kvop/try", namespace=cluster.namespace)

    def shown() -> bool:
        status = cluster.get("kvop", "try", namespace=cluster.namespace)["status"]
        return [item["load"]["maxTokens"] for item in status.get("effective", [])] == [33]

    wait_for(shown, what="the would-be effective block")
    assert "maxTokens" not in cluster.wait_entry(uid, lambda _entry: True).get("load", {})


def test_the_transition_time_stays_when_only_the_reason_changes(cluster: Cluster) -> None:
    cluster.policy("chat", {"load": {"maxTokens": 8}})
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    before = condition(cluster.get("kvop", "chat", namespace=cluster.namespace), "Accepted")
    cluster.cluster_policy("default", {"limits": {"load": {"maxTokens": 4}}})
    cluster.engine("vllm-0")

    def clamped() -> bool:
        found = condition(cluster.get("kvop", "chat", namespace=cluster.namespace), "Accepted")
        return found["reason"] == "Clamped"

    wait_for(clamped, what="Accepted=True/Clamped")
    after = condition(cluster.get("kvop", "chat", namespace=cluster.namespace), "Accepted")
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
