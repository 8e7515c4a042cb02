"""The operator writes nothing that is not needed, and touches nothing that is the users'."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.integration.operator.conftest import Cluster, Operator, Start, populate, wait_for

pytestmark = pytest.mark.cluster

KINDS = "kvoffloadpolicies,clusterkvoffloadpolicies,kvoffloadnodes"


def versions(cluster: Cluster) -> dict[str, str]:
    found = json.loads(cluster.plane.kubectl("get", KINDS, "-A", "-o", "json").stdout)
    return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in found["items"]}


def settled(cluster: Cluster) -> dict[str, str]:
    """Return the versions once they stand still."""
    last: list[dict[str, str]] = [{}]

    def still() -> bool:
        before, last[0] = last[0], versions(cluster)
        return before == last[0]

    wait_for(still, what="standstill", every_s=1.0)
    return last[0]


def test_a_killed_operator_that_returns_writes_nothing_when_nothing_changed(
    cluster: Cluster, operator: Operator, start_operator: Start
) -> None:
    populate(cluster)
    before = settled(cluster)
    # The session's operator keeps the Lease; this one works beside it, without election, and dies.
    other = start_operator("--no-leader-elect")
    other.process.kill()
    again = start_operator("--no-leader-elect")
    wait_for(
        lambda: again.metric("controller_runtime_reconcile_total") >= len(before),
        what="a pass over every object",
    )
    wait_for(lambda: again.metric("workqueue_depth") == 0, what="an empty queue")

    assert versions(cluster) == before
    assert again.writes() == 0
    assert again.process.stop() == 0


def test_a_killed_leader_is_followed_within_20_seconds_and_a_stopped_one_releases_the_lease(
    cluster: Cluster, operator: Operator, start_operator: Start
) -> None:
    populate(cluster)
    standby = start_operator()
    assert standby.metric("leader_election_master_status") == 0
    operator.process.kill()
    started = time.monotonic()
    wait_for(
        lambda: standby.metric("leader_election_master_status") == 1,
        what="a new leader",
        deadline_s=25,
    )
    assert time.monotonic() - started < 20
    cluster.policy("chat", {"load": {"maxTokens": 51}})
    uid = cluster.get("pod", "vllm-0", namespace=cluster.namespace)["metadata"]["uid"]
    cluster.wait_entry(uid, lambda entry: entry.get("load", {}).get("maxTokens") == 51)

    started = time.monotonic()
    assert standby.process.stop() == 0
    assert time.monotonic() - started < 8
    lease = cluster.get("lease", "kvoffload-operator", namespace="kvoffload-system")
    assert not lease["spec"].get("holderIdentity")


def test_users_objects_get_no_finalizer_and_no_annotation_and_only_their_status_is_ours(
    cluster: Cluster,
) -> None:
    populate(cluster)
    for kind, namespace in (("kvop/chat", cluster.namespace), ("ckvop/default", "")):
        arguments = ["get", kind, "-o", "json", "--show-managed-fields"]
        found: dict[str, Any] = json.loads(
            cluster.plane.kubectl(*arguments, *(["-n", namespace] if namespace else [])).stdout
        )
        metadata = found["metadata"]
        assert "finalizers" not in metadata
        assert set(metadata.get("annotations", {})) <= {
            "kubectl.kubernetes.io/last-applied-configuration"
        }
        ours = [
            entry for entry in metadata["managedFields"] if entry["manager"] == "kvoffload-operator"
        ]
        assert [set(entry["fieldsV1"]) for entry in ours] == [{"f:status"}]


def test_idle_nothing_is_written(cluster: Cluster) -> None:
    populate(cluster)
    before = settled(cluster)
    time.sleep(5)

    assert versions(cluster) == before
