"""The API server can go away and come back, as in an upgrade or a crash."""

from __future__ import annotations

import pytest
from tests.cluster.controlplane import ControlPlane

pytestmark = pytest.mark.cluster


def test_data_tokens_and_address_survive_a_restart_and_a_kill(
    own_control_plane: ControlPlane,
) -> None:
    plane = own_control_plane
    plane.create_namespace(name="kept")
    token = plane.create_token(namespace="kept", audience="kvoffload")
    address = plane.url
    plane.restart_api_server()
    assert plane.exists("/api/v1/namespaces/kept")
    plane.restart_api_server(kill=True)
    assert plane.exists("/api/v1/namespaces/kept")
    assert plane.review_token(token=token)["authenticated"] is True
    assert plane.url == address


def test_while_it_is_stopped_requests_fail_and_controllers_wait_for_it(
    own_control_plane: ControlPlane,
) -> None:
    plane = own_control_plane
    plane.stop_api_server()
    with pytest.raises(ConnectionRefusedError):
        plane.request(method="GET", path="/api/v1/namespaces")
    plane.start_api_server()
    plane.create_namespace(name="later")  # waits for kube-controller-manager's work
