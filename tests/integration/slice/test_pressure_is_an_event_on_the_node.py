"""Memory gets short on a node of a real API server: `kubectl describe node` says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane import ControlPlane
from tests.harness.installation import SYSTEM, Installation, wait_for
from tests.integration.slice.conftest import Apply, MakeEngine, cluster_default, store_prompt

pytestmark = pytest.mark.cluster

GIB = 1 << 30


def events_of(plane: ControlPlane, node: str) -> list[dict[str, Any]]:
    found = plane.kubectl(
        "get", "events.events.k8s.io", "-n", "default", "-o", "json",
        "--field-selector", f"regarding.kind=Node,regarding.name={node}",
    ).stdout  # fmt: skip
    return [item for item in json.loads(found)["items"] if item["reason"].startswith("Memory")]


def test_what_is_given_back_is_an_event_on_the_node_with_the_rights_that_are_shipped(
    control_plane: ControlPlane,
    installation: Installation,
    apply: Apply,
    engines: MakeEngine,
    tmp_path: Path,
) -> None:
    # A pod that is resized in place, as a Downward API volume shows it.
    limit = tmp_path / "limit"
    limit.write_text(str(1024 * GIB))
    apply(cluster_default(100))
    installation.start_operator()
    installation.start_agent("--memory-limit-file", str(limit))
    store_prompt(engines())
    mapped = installation.debug_state()["memory"]["mapped"]
    assert mapped > 0
    assert events_of(control_plane, installation.node) == []
    limit.write_text("1")
    wait_for(lambda: events_of(control_plane, installation.node), what="the Event")
    (event, *_) = events_of(control_plane, installation.node)
    assert (event["type"], event["reason"]) == ("Warning", "MemoryPressure")
    assert event["reportingController"] == "kvoffload.io/agent"
    assert f"{mapped >> 20} MiB" in event["note"]
    assert "explicit limit" in event["note"]
    described = control_plane.kubectl("describe", "node", installation.node).stdout
    assert "MemoryPressure" in described.partition("\nEvents:")[2]
    # About Nodes only: nothing is told in a namespace of its own or of anybody else.
    for namespace, verb in (("default", "yes"), (SYSTEM, "no"), ("kube-system", "no")):
        assert may(control_plane, "create", namespace) == verb
    assert may(control_plane, "list", "default") == "no"


def may(plane: ControlPlane, verb: str, namespace: str) -> str:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{SYSTEM}:kvoffload-agent",
            "resourceAttributes": {
                "group": "events.k8s.io",
                "resource": "events",
                "verb": verb,
                "namespace": namespace,
            },
        },
    }
    answer = plane.kubectl(
        "create", "-f", "-", "-o", "jsonpath={.status.allowed}", input=json.dumps(review)
    ).stdout
    return "yes" if answer == "true" else "no"
