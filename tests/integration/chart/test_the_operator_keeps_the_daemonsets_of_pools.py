"""One DaemonSet for each pool of the values, as the real DaemonSet controller sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.cluster.api import ApiError
from tests.harness.helm import AGENTS, CHART
from tests.integration.chart.conftest import NODE, Installed, names, wait_for

pytestmark = pytest.mark.cluster

NAME = "kvoffload-agent-default"
Json = dict[str, Any]


def daemonset(made: Installed, name: str = NAME) -> Json:
    def found() -> Json | None:
        path = f"/apis/apps/v1/namespaces/{AGENTS}/daemonsets/{name}"
        try:
            return made.plane.request(method="GET", path=path)
        except ApiError:
            return None

    live: Json = wait_for(found, what=f"the DaemonSet {name}")
    return live


def image(live: Json) -> str:
    return str(live["spec"]["template"]["spec"]["containers"][0]["image"])


def pod_uids(made: Installed) -> set[str]:
    found = made.plane.kubectl("get", "pods", "-n", AGENTS, "-l", "kvoffload.io/pool", "-o", "json")
    return {pod["metadata"]["uid"] for pod in json.loads(found.stdout)["items"]}


def notes(made: Installed, reason: str) -> list[str]:
    found = made.plane.kubectl("get", "events.events.k8s.io", "-n", AGENTS, "-o", "json")
    items = json.loads(found.stdout)["items"]
    return [item["note"] for item in items if item["reason"] == reason]


def test_a_pools_agents_run_on_its_nodes_and_belong_to_the_releases_config_map(
    installed: Installed,
) -> None:
    live = daemonset(installed)
    config = installed.plane.kubectl("get", "cm", "kvoffload-agents", "-n", AGENTS, "-o", "json")

    [owner] = live["metadata"]["ownerReferences"]
    assert owner["uid"] == json.loads(config.stdout)["metadata"]["uid"]
    wait_for(lambda: pod_uids(installed), what="an agent's pod")
    assert "made for its pool" in wait_for(
        lambda: notes(installed, "DaemonSetCreated"), what="the Event"
    )


def test_a_node_of_no_pool_gets_no_configuration_and_one_that_joins_does(
    installed: Installed,
) -> None:
    plane = installed.plane
    plane.create_node(name="windows-0", labels={"kubernetes.io/os": "windows"})
    plane.create_node(name="gpu-9", labels={"kubernetes.io/os": "linux"})
    wait_for(lambda: "gpu-9" in names(plane, "kvon"), what="the object of a pool's node")
    assert "windows-0" not in names(plane, "kvon")

    plane.kubectl("label", "node", "windows-0", "kubernetes.io/os=linux", "--overwrite")
    wait_for(lambda: "windows-0" in names(plane, "kvon"), what="the object of the node that joined")
    plane.kubectl("label", "node", "windows-0", "kubernetes.io/os=windows", "--overwrite")
    wait_for(lambda: "windows-0" not in names(plane, "kvon"), what="the end of its object")


def test_an_edited_field_is_put_right_with_an_event_that_names_it(installed: Installed) -> None:
    before = image(daemonset(installed))
    plane = installed.plane
    plane.kubectl("set", "image", f"ds/{NAME}", "agent=x:y", "-n", AGENTS)
    wait_for(lambda: image(daemonset(installed)) == before, what="the image", deadline_s=5)

    told = wait_for(lambda: notes(installed, "DriftCorrected"), what="the Event")
    assert any("spec.template.spec.containers[0].image" in note for note in told)


def test_fields_of_others_and_a_restart_by_kubectl_stay(installed: Installed) -> None:
    plane = installed.plane
    before = daemonset(installed)
    plane.kubectl("annotate", "ds", NAME, "team=storage", "-n", AGENTS)
    plane.kubectl("rollout", "restart", f"ds/{NAME}", "-n", AGENTS)
    # A write of ours to the same object, after which both must still be there.
    plane.kubectl("set", "image", f"ds/{NAME}", "agent=x:z", "-n", AGENTS)
    wait_for(lambda: image(daemonset(installed)) == image(before), what="the image")

    after = daemonset(installed)
    assert after["metadata"]["annotations"]["team"] == "storage"
    template = after["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in template


def test_a_changed_policy_restarts_no_agent(
    installed: Installed,
) -> None:
    wait_for(lambda: pod_uids(installed), what="an agent's pod")
    generation = daemonset(installed)["metadata"]["generation"]
    pods = pod_uids(installed)
    body = {
        "apiVersion": "kvoffload.io/v1alpha1",
        "kind": "ClusterKVOffloadPolicy",
        "metadata": {"name": "bytes"},
        "spec": {"nodeBudget": {"hostMemory": "2Gi"}},
    }
    installed.plane.kubectl("apply", "-f", "-", input=json.dumps(body))

    def budget() -> str | None:
        found = installed.plane.kubectl("get", "kvon", NODE, "-o", "json")
        value: str | None = json.loads(found.stdout)["spec"].get("budget", {}).get("hostMemory")
        return value

    wait_for(lambda: budget() == "2Gi", what="the budget of the node")
    assert daemonset(installed)["metadata"]["generation"] == generation
    assert pod_uids(installed) == pods
    installed.plane.kubectl("delete", "ckvop", "bytes")


# 10 s: three upgrades.
@pytest.mark.long
def test_pools_come_and_go_with_the_values_and_a_wrong_one_changes_nothing(
    installed: Installed,
) -> None:
    default = yaml.safe_load((CHART / "values.yaml").read_text())["agent"]["pools"][0]
    big = {**default, "name": "big", "nodeSelector": {"gpu": "big"}}
    pools = lambda *items: ["--set-json", f"agent.pools={json.dumps(items)}"]  # noqa: E731
    made = installed

    made.helm.upgrade(*pools(default, big))
    found = daemonset(made, "kvoffload-agent-big")
    assert found["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "big"}

    # Helm cannot see that these bytes do not fit; the operator says so and leaves what runs.
    made.helm.upgrade(*pools(default, {**big, "hostMemory": "64Gi"}))
    told = wait_for(lambda: notes(made, "AgentsConfigRejected"), what="the Event")
    assert "pool big: hostMemory 64Gi leaves less than 256 MiB" in told[0]
    assert daemonset(made, "kvoffload-agent-big")["metadata"]["uid"] == found["metadata"]["uid"]

    made.helm.upgrade(*pools(default))
    wait_for(lambda: names(made.plane, "ds", AGENTS) == {NAME}, what="the end of the pool's agents")
