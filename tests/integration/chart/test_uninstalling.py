"""What stays and what goes when the release is uninstalled."""

from __future__ import annotations

import json

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.harness.helm import AGENTS, NAMESPACE, RELEASE, Helm
from tests.integration.chart.conftest import install, names, wait_for

# 25 s, most of it a control plane of its own.
pytestmark = [pytest.mark.cluster, pytest.mark.long]

DEFAULT = "/apis/kvoffload.io/v1alpha1/clusterkvoffloadpolicies/default"


def test_uninstalling_keeps_crds_and_policies_and_leaves_no_pod_and_no_stuck_namespace(
    helm: Helm, own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plane = own_control_plane
    made = install(helm, plane, tmp_path_factory)
    helm = made.helm
    wait_for(lambda: names(plane, "ds", AGENTS), what="the agents' DaemonSet")
    wait_for(lambda: names(plane, "pods", AGENTS), what="an agent's pod")
    policy = {
        "apiVersion": "kvoffload.io/v1alpha1",
        "kind": "KVOffloadPolicy",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"load": {"maxTokens": 1}},
    }
    plane.kubectl("apply", "-f", "-", input=json.dumps(policy))

    # Without the operator nothing needs cleaning up either: no object has a finalizer of ours.
    made.operator.process.stop()
    helm("uninstall", RELEASE, "--namespace", NAMESPACE)

    def no_agents() -> bool:
        # There is no kubelet that confirms the end of pods.
        plane.delete(f"/api/v1/namespaces/{AGENTS}/pods", query={"gracePeriodSeconds": "0"})
        return AGENTS not in names(plane, "namespace")

    wait_for(no_agents, what="the end of the agents' namespace", deadline_s=60)
    assert names(plane, "ckvop") == {"default"}
    assert names(plane, "kvop", "default") == {"chat"}
    assert "kvoffloadpolicies.kvoffload.io" in names(plane, "crd")
    assert not names(plane, "validatingadmissionpolicy")
    assert not names(plane, "clusterrole") & {"kvoffload-operator", "kvoffload-agent"}
    plane.delete(f"/api/v1/namespaces/{NAMESPACE}/pods", query={"gracePeriodSeconds": "0"})
    plane.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")

    helm.install("--set", "clusterDefaults.load.maxTokens=77")
    assert plane.request(method="GET", path=DEFAULT)["spec"]["defaults"]["load"]["maxTokens"] == 77
