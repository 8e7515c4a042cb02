"""A token tells the agent which pod presents it, as in a real cluster."""

from __future__ import annotations

import pytest
from tests.cluster.api import ApiError
from tests.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.cluster
EXTRA = "authentication.kubernetes.io"


def test_a_review_names_the_pod_and_node_that_a_token_is_bound_to(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    pod = control_plane.create_pod(name="engine", namespace=namespace, node=node)
    token = control_plane.create_token(namespace=namespace, audience="kvoffload", pod="engine")
    status = control_plane.review_token(token=token)
    assert status["authenticated"] is True
    assert status["audiences"] == ["kvoffload"]
    assert status["user"]["username"] == f"system:serviceaccount:{namespace}:default"
    extra = status["user"]["extra"]
    assert extra[f"{EXTRA}/pod-name"] == ["engine"]
    assert extra[f"{EXTRA}/pod-uid"] == [pod["metadata"]["uid"]]
    assert extra[f"{EXTRA}/node-name"] == [node]


def test_a_token_bound_to_no_pod_names_none(control_plane: ControlPlane, namespace: str) -> None:
    token = control_plane.create_token(namespace=namespace, audience="kvoffload")
    extra = control_plane.review_token(token=token)["user"]["extra"]
    assert f"{EXTRA}/pod-name" not in extra


def test_a_token_for_another_audience_is_refused(
    control_plane: ControlPlane, namespace: str
) -> None:
    token = control_plane.create_token(namespace=namespace, audience="somebody-else")
    status = control_plane.review_token(token=token)
    assert status.get("authenticated") is not True
    assert "token audiences" in status["error"]


def test_a_token_for_the_agent_is_of_no_use_at_the_api_server(
    control_plane: ControlPlane, namespace: str
) -> None:
    token = control_plane.create_token(namespace=namespace, audience="kvoffload")
    with pytest.raises(ApiError, match="401 Unauthorized"):
        control_plane.request(method="GET", path="/api/v1/namespaces", token=token)


def test_a_pods_kubeconfig_acts_as_its_service_account(
    control_plane: ControlPlane, namespace: str, node: str
) -> None:
    control_plane.create_pod(name="agent", namespace=namespace, node=node)
    kubeconfig = control_plane.kubeconfig_for_service_account(namespace=namespace, pod="agent")
    told = control_plane.kubectl("auth", "whoami", kubeconfig=kubeconfig).stdout
    assert f"system:serviceaccount:{namespace}:default" in told
    assert f"[{node}]" in told
