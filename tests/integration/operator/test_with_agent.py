"""Operator and agent as real processes, each with the credentials that it is shipped with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.processes import Process
from tests.integration.operator.conftest import SYSTEM, Cluster, Start, wait_for

pytestmark = pytest.mark.cluster

PROGRAM = Path(sys.executable).with_name("kvoffload-agent")


@pytest.fixture
def agent(cluster: Cluster, tmp_path: Path) -> Iterator[Process]:
    """Give the agent of the node, from a pod of its own as the DaemonSet makes it."""
    plane = cluster.plane
    name = f"agent-{cluster.node}"
    plane.create_pod(
        name=name, namespace=SYSTEM, node=cluster.node, service_account="kvoffload-agent"
    )
    kubeconfig = plane.kubeconfig_for_service_account(
        namespace=SYSTEM, service_account="kvoffload-agent", pod=name
    )
    process = Process(
        [
            str(PROGRAM), "run", "--kubeconfig", str(kubeconfig), "--node-name", cluster.node,
            "--socket", str(tmp_path / "agent.sock"), "--http", "",
            "--state-dir", str(tmp_path / "state"), "--host-memory", "64Mi",
        ],
        name="agent",
        log=tmp_path / "agent.log",
    )  # fmt: skip
    yield process
    process.stop()
    plane.delete_pod(name=name, namespace=SYSTEM)


def test_a_policy_becomes_ready_when_the_agent_has_applied_it_after_create_and_after_change(
    cluster: Cluster, agent: Process
) -> None:
    cluster.engine("vllm-0")
    cluster.cluster_policy("default", {"defaults": {"load": {"maxTokens": 100}}})
    cluster.policy("chat", {"load": {"maxTokens": 50}})
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    cluster.wait_ready("ckvop/default")
    cluster.policy("chat", {"load": {"maxTokens": 40}})

    def ready() -> bool:
        found = cluster.get("kvop", "chat", namespace=cluster.namespace)
        return found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2

    wait_for(ready, what="the status of the second generation")
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    live = cluster.offload_node()
    assert live["status"]["appliedHash"] == live["spec"]["hash"]
    assert agent.running


def test_with_an_agent_nothing_is_written_while_nothing_changes(
    cluster: Cluster, agent: Process, start_operator: Start
) -> None:
    cluster.engine("vllm-0")
    cluster.policy("chat", {"load": {"maxTokens": 50}})
    cluster.wait_ready("kvop/chat", namespace=cluster.namespace)
    again = start_operator("--no-leader-elect")
    wait_for(
        lambda: again.metric("controller_runtime_reconcile_total") >= 2, what="a pass over each"
    )
    wait_for(lambda: again.metric("workqueue_depth") == 0, what="an empty queue")

    assert again.writes() == 0
    assert again.process.stop() == 0
