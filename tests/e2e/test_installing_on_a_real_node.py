"""The chart on a real node: everything Ready under the Pod Security Standard `restricted`."""

from __future__ import annotations

from typing import Any

from tests.harness.helm import AGENTS, NAMESPACE
from tests.harness.installation import wait_for

from .conftest import INSTALL_SECONDS, Installed


def pods(installed: Installed, namespace: str) -> list[dict[str, Any]]:
    answer = installed.node.request(method="GET", path=f"/api/v1/namespaces/{namespace}/pods")
    return list(answer["items"])


def test_operator_and_agent_are_ready_within_90_seconds(installed: Installed) -> None:
    assert installed.seconds < INSTALL_SECONDS
    for namespace, count in ((NAMESPACE, 2), (AGENTS, 1)):
        found = pods(installed, namespace)
        assert len(found) == count
        for pod in found:
            conditions = {c["type"]: c["status"] for c in pod["status"]["conditions"]}
            assert conditions["Ready"] == "True"
            assert {c["restartCount"] for c in pod["status"]["containerStatuses"]} == {0}


def test_one_command_answers_whether_it_works(installed: Installed) -> None:
    wait_for(
        lambda: "True" in installed.node.kubectl("get", "kvoffloadnodes").stdout,
        what="a node that says that it works",
        deadline_seconds=60,
    )
    answer = installed.node.kubectl("get", "kvoffload", "-A").stdout
    assert "kvoffloadnode.kvoffload.io/node-a" in answer
    assert "clusterkvoffloadpolicy.kvoffload.io/default" in answer


def test_the_node_offers_the_device(installed: Installed) -> None:
    def offered() -> bool:
        node = installed.node.request(method="GET", path="/api/v1/nodes/node-a")
        return bool(node["status"]["allocatable"].get("kvoffload.io/agent") == "1024")

    wait_for(offered, what="the device kvoffload.io/agent", deadline_seconds=60)
