"""Tests and the demo get real Kubernetes objects without a node behind them."""

from __future__ import annotations

import pytest
from tests.cluster.api import ApiError, wait_until
from tests.cluster.controlplane import ControlPlane, KubectlError

pytestmark = pytest.mark.cluster


def test_kubectl_and_api_server_have_the_pinned_version(control_plane: ControlPlane) -> None:
    told = control_plane.kubectl("version").stdout
    assert told.count("v1.36.3") == 2, told


def test_a_node_object_is_ready_and_untainted(control_plane: ControlPlane, node: str) -> None:
    found = control_plane.request(method="GET", path=f"/api/v1/nodes/{node}")
    assert "taints" not in found["spec"]
    assert [(c["type"], c["status"]) for c in found["status"]["conditions"]] == [("Ready", "True")]


def test_a_pod_object_is_bound_runs_and_goes_at_once(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    control_plane.create_pod(name="engine", namespace=namespace, labels={"app": "engine"})
    control_plane.bind_pod(name="engine", namespace=namespace, node=node)
    control_plane.set_pod_status(name="engine", namespace=namespace)
    path = f"/api/v1/namespaces/{namespace}/pods/engine"
    found = control_plane.request(method="GET", path=path)
    assert (found["spec"]["nodeName"], found["status"]["phase"]) == (node, "Running")
    control_plane.delete_pod(name="engine", namespace=namespace)
    assert not control_plane.exists(path)


def test_the_daemonset_controller_makes_a_pod_for_a_node(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    labels = {"app": "agent"}
    control_plane.apply(
        [
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "agent", "namespace": namespace},
                "spec": {
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {
                            "nodeSelector": {"kubernetes.io/hostname": node},
                            "containers": [{"name": "agent", "image": "none"}],
                        },
                    },
                },
            }
        ]
    )
    path = f"/api/v1/namespaces/{namespace}/pods"
    wait_until(
        lambda: len(control_plane.request(method="GET", path=path)["items"]) == 1,
        what="the DaemonSet's pod",
    )


def test_the_garbage_collector_removes_what_a_deleted_node_owned(
    control_plane: ControlPlane, namespace: str
) -> None:
    owner = control_plane.create_node(name=f"{namespace}-owner")
    control_plane.apply(
        [
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {
                    "name": namespace,
                    "ownerReferences": [
                        {
                            "apiVersion": "v1",
                            "kind": "Node",
                            "name": owner["metadata"]["name"],
                            "uid": owner["metadata"]["uid"],
                        }
                    ],
                },
            }
        ]
    )
    control_plane.delete(f"/api/v1/nodes/{namespace}-owner")
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{namespace}"
    wait_until(lambda: not control_plane.exists(path), what="the garbage collector")


def test_a_user_known_by_certificate_may_do_what_rbac_grants_and_no_more(
    control_plane: ControlPlane, namespace: str
) -> None:
    eve = control_plane.kubeconfig_for_certificate(user=f"eve-{namespace}")
    read = ("get", "configmaps", "-n", namespace)
    with pytest.raises(KubectlError, match=f'User "eve-{namespace}" cannot list'):
        control_plane.kubectl(*read, kubeconfig=eve)
    control_plane.kubectl(
        *("create", "rolebinding", "eve", "-n", namespace, "--clusterrole=view"),
        f"--user=eve-{namespace}",
    )
    wait_until(
        lambda: control_plane.kubectl(*read, kubeconfig=eve, check=False).returncode == 0,
        what="the role binding",
    )


def test_an_error_says_what_the_api_server_said(control_plane: ControlPlane) -> None:
    with pytest.raises(ApiError, match=r"404 NotFound: nodes \"absent\" not found"):
        control_plane.request(method="GET", path="/api/v1/nodes/absent")
