"""Install, upgrade and roll back on a real API server; nodes and pods are objects only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cluster.api import MERGE_PATCH, ApiError
from tests.cluster.controlplane import ControlPlane
from tests.harness.helm import AGENTS, NAMESPACE, RELEASE
from tests.integration.chart.conftest import LIMIT, LIMITS, NODE, Installed, names, wait_for

pytestmark = pytest.mark.cluster

Json = dict[str, Any]


def compiled_cap(plane: ControlPlane) -> int | None:
    """Return the cap on loads in the node's entry for the engine pod."""
    path = f"/apis/kvoffload.io/v1alpha1/kvoffloadnodes/{NODE}"
    try:
        spec = plane.request(method="GET", path=path)["spec"]
    except ApiError:
        return None
    for entry in spec.get("entries", []):
        cap: int | None = entry.get("load", {}).get("maxTokens")
        return cap
    return None


def test_an_upgrade_with_another_cap_changes_what_the_node_is_told(
    installed: Installed,
) -> None:
    helm, plane = installed.helm, installed.plane
    plane.create_namespace(name="team-a")
    plane.create_pod(
        name="vllm-0", namespace="team-a", node=NODE, labels={"kvoffload.io/engine": "true"}
    )
    wait_for(lambda: compiled_cap(plane) == 4096, what="the cap of the installation")

    helm.upgrade("--set", "clusterDefaults.load.maxTokens=1024", *LIMITS)
    wait_for(lambda: compiled_cap(plane) == 1024, what="the cap of the upgrade", deadline_s=5)


@pytest.mark.long
def test_a_rollback_brings_back_the_cap_and_loses_no_policy(installed: Installed) -> None:
    helm, plane = installed.helm, installed.plane
    plane.create_namespace(name="team-d")
    plane.create_pod(
        name="vllm-0", namespace="team-d", node=NODE, labels={"kvoffload.io/engine": "true"}
    )
    # To a later revision than the first, which made the policy after its manifest.
    helm.upgrade("--set", "clusterDefaults.load.maxTokens=1023", *LIMITS)
    wait_for(lambda: compiled_cap(plane) == 1023, what="the cap of the upgrade", deadline_s=5)
    revision = json.loads(helm("history", RELEASE, "--namespace", NAMESPACE, "-o", "json"))[-1]
    helm.upgrade("--set", "clusterDefaults.load.maxTokens=512", *LIMITS)
    wait_for(lambda: compiled_cap(plane) == 512, what="the cap of the next", deadline_s=5)

    helm("rollback", RELEASE, str(revision["revision"]), "--namespace", NAMESPACE)
    wait_for(lambda: compiled_cap(plane) == 1023, what="the cap rolled back to", deadline_s=5)
    policies = names(plane, "ckvop")
    assert "default" in policies


def test_what_was_installed_is_accepted_by_the_server(
    installed: Installed,
) -> None:
    plane = installed.plane

    assert names(plane, "deployment", NAMESPACE) == {"kvoffload-operator"}
    assert names(plane, "pdb", NAMESPACE) == {"kvoffload-operator"}
    assert names(plane, "configmap", AGENTS) >= {"kvoffload-agents"}
    served = names(plane, "crd")
    assert {"kvoffloadpolicies.kvoffload.io", "kvoffloadnodes.kvoffload.io"} <= served
    assert names(plane, "validatingadmissionpolicy") == {
        "kvoffload-agent-node",
        "kvoffload-clamped",
    }
    assert names(plane, "mutatingadmissionpolicy") == {"kvoffload-engines"}
    for kind in ("validatingadmissionpolicy", "mutatingadmissionpolicy"):
        for item in json.loads(plane.kubectl("get", kind, "-o", "json").stdout)["items"]:
            warnings = item.get("status", {}).get("typeChecking", {}).get("expressionWarnings")
            assert not warnings


def test_a_namespace_that_enforces_restricted_takes_the_operators_pods(
    installed: Installed,
) -> None:
    plane = installed.plane
    label = "pod-security.kubernetes.io/enforce=restricted"
    told = plane.kubectl("label", "namespace", NAMESPACE, label)

    assert "violate" not in told.stderr
    plane.kubectl("rollout", "restart", "deployment/kvoffload-operator", "-n", NAMESPACE)
    wait_for(lambda: len(names(plane, "pods", NAMESPACE)) >= 2, what="pods of the operator")


def test_an_agent_writes_the_status_of_its_own_node_only(
    installed: Installed,
) -> None:
    plane = installed.plane
    plane.create_node(name="gpu-1", labels={"kubernetes.io/os": "linux"})
    wait_for(lambda: {NODE, "gpu-1"} <= names(plane, "kvon"), what="both nodes' objects")
    plane.create_pod(
        name="agent-gpu-0", namespace=AGENTS, node=NODE, service_account="kvoffload-agent"
    )
    agent = plane.create_token(
        namespace=AGENTS, service_account="kvoffload-agent", pod="agent-gpu-0"
    )
    unbound = plane.create_token(namespace=AGENTS, service_account="kvoffload-agent")

    def refusal(node: str, token: str | None, *, version: str = "1") -> str:
        try:
            plane.request(
                method="PATCH",
                path=f"/apis/kvoffload.io/v1alpha1/kvoffloadnodes/{node}/status",
                body={"status": {"agentVersion": version}},
                content_type=MERGE_PATCH,
                token=token,
            )
        except ApiError as error:
            return f"{error.status} {error.message}"
        return ""

    told = wait_for(lambda: refusal("gpu-1", agent), what="the admission policy taking effect")
    assert told.startswith("403 ")
    assert "an agent may write its own node's KVOffloadNode only" in told
    assert "not bound to a pod" in refusal(NODE, unbound)
    assert refusal(NODE, agent, version="2") == ""
    assert refusal("gpu-1", None, version="3") == ""


def test_who_applies_a_value_above_a_limit_is_warned_and_not_refused(
    installed: Installed,
) -> None:
    plane = installed.plane
    plane.create_namespace(name="team-b")

    def applied(load: int, memory: str) -> str:
        body = {
            "apiVersion": "kvoffload.io/v1alpha1",
            "kind": "KVOffloadPolicy",
            "metadata": {"name": "chat", "namespace": "team-b"},
            "spec": {"load": {"maxTokens": load}, "hostMemory": {"capacity": memory}},
        }
        return plane.kubectl("apply", "-f", "-", input=json.dumps(body)).stderr

    # An update that changes nothing is not sent.
    caps = iter(range(LIMIT + 1, LIMIT + 1000))

    def warned() -> str:
        text = applied(next(caps), "1Ti")
        return text if "Warning" in text else ""

    told = wait_for(warned, what="the warning")
    assert (
        f"load.maxTokens is above the limit {LIMIT} of ClusterKVOffloadPolicy/default#limits"
        in told
    )
    assert "hostMemory.capacity is above the limit 1Gi" in told
    assert "Warning" not in applied(900, "512Mi")


def test_an_opted_in_pod_gets_device_token_and_environment_and_keeps_its_own(
    installed: Installed,
) -> None:
    plane = installed.plane
    plane.create_namespace(name="team-c")
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "team-c", "labels": {"kvoffload.io/engine": "true"}},
        "spec": {
            "initContainers": [{"name": "warm", "image": "none"}],
            "containers": [
                {
                    "name": "engine",
                    "image": "none",
                    "env": [{"name": "KVOFFLOAD_SOCKET", "value": "/my/agent.sock"}],
                    "resources": {"limits": {"memory": "1Gi"}},
                },
                {"name": "side", "image": "none"},
            ],
        },
    }

    def created(suffix: str, **metadata: Any) -> Json:
        pod: Json = {**body, "metadata": {**body["metadata"], "name": suffix, **metadata}}  # type: ignore[dict-item]
        return plane.request(method="POST", path="/api/v1/namespaces/team-c/pods", body=pod)

    number = iter(range(100))

    def given() -> Json | None:
        pod = created(f"engine-{next(number)}")
        volumes = [volume["name"] for volume in pod["spec"]["volumes"]]
        return pod if "kvoffload-token" in volumes else None

    spec = wait_for(given, what="the admission policy taking effect")["spec"]
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["resources"]["limits"]["kvoffload.io/agent"] == "1"
        assert container["resources"]["requests"]["kvoffload.io/agent"] == "1"
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/var/run/secrets/kvoffload" in mounts
        environment = {entry["name"]: entry["value"] for entry in container["env"]}
        mine = container["name"] == "engine"
        assert environment == {
            "KVOFFLOAD_SOCKET": "/my/agent.sock" if mine else "/run/kvoffload/agent.sock",
            "KVOFFLOAD_TOKEN_FILE": "/var/run/secrets/kvoffload/token",
        }
    assert spec["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
    [token] = [volume for volume in spec["volumes"] if volume["name"] == "kvoffload-token"]
    [source] = token["projected"]["sources"]
    assert source["serviceAccountToken"] == {
        "audience": "kvoffload", "expirationSeconds": 3600, "path": "token",
    }  # fmt: skip

    other = created("not-opted-in", labels={})
    assert "kvoffload" not in json.dumps(other["spec"])
