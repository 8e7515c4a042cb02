"""What kubectl shows of our kinds."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane import ControlPlane

from kvoffload_api.crd.documents import KINDS, Kind, crd

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("crds")]
HASH = "0123456789abcdef"
NOW = "2026-01-31T12:00:00Z"
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Return (path, description) of every field, paths as `kubectl explain` takes them."""
    for name, child in schema.get("properties", {}).items():
        if not (path == "" and name == "metadata"):
            yield f"{path}.{name}", child.get("description", "")
            yield from fields(child, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], path)


@kinds
def test_explain_describes_every_field(control_plane: ControlPlane, kind: Kind) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    # `kubectl explain` prints what the server publishes here.
    published = control_plane.request(method="GET", path="/openapi/v3/apis/kvoffload.io/v1alpha1")[
        "components"
    ]["schemas"]

    described = dict(fields(published[f"io.kvoffload.v1alpha1.{kind.kind}"]))
    for path, description in fields(schema):
        assert description, path
        if path not in {".apiVersion", ".kind"}:
            assert described[path] == description, path


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("kvop.spec.load.maxTokens", "Most tokens that one request may load"),
        ("ckvop.spec.rollout.maxUnavailable", "How many nodes may change bytes at a time"),
        ("kvon.spec.pods.entry", "Hash of the pod's entry"),
        ("kvon.status.memory.headroom", "without passing `limit`"),
    ],
)
def test_explain_knows_the_short_names(control_plane: ControlPlane, path: str, part: str) -> None:
    text = control_plane.kubectl("explain", path).stdout

    assert part in " ".join(text.split())


@pytest.fixture(scope="module", autouse=True)
def published(control_plane: ControlPlane, crds: None) -> None:
    """Wait until the server has published the schemas, which it does after Established."""
    deadline = time.monotonic() + 30
    for kind in KINDS:
        while control_plane.kubectl("explain", kind.plural, check=False).returncode:
            assert time.monotonic() < deadline, f"{kind.plural} were never published"
            time.sleep(0.1)


def conditions() -> list[dict[str, str]]:
    return [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Programmed",
            "message": "",
            "lastTransitionTime": NOW,
        }
    ]


def row(plane: ControlPlane, *args: str) -> dict[str, str]:
    """Return the only row of a table by column; kubectl puts three blanks between columns."""
    header, line = plane.kubectl("get", *args).stdout.splitlines()
    columns = list(re.finditer(r"\S+\s*", header))
    return {item[0].strip(): line[item.start() : item.end()].strip() for item in columns}


@pytest.mark.usefixtures("no_operator")
def test_tables_and_short_names(control_plane: ControlPlane, namespace: str) -> None:
    plane = control_plane
    node = f"node-{namespace}"
    plane.apply(
        [
            {
                "apiVersion": "kvoffload.io/v1alpha1",
                "kind": "KVOffloadPolicy",
                "metadata": {"name": "chat", "namespace": namespace},
                "spec": {"priority": 7, "load": {"maxTokens": 5}},
            },
            {
                "apiVersion": "kvoffload.io/v1alpha1",
                "kind": "ClusterKVOffloadPolicy",
                "metadata": {"name": namespace},
                "spec": {"priority": 3, "limits": {"load": {"maxTokens": 5}}},
            },
            {
                "apiVersion": "kvoffload.io/v1alpha1",
                "kind": "KVOffloadNode",
                "metadata": {"name": node},
                "spec": {"hash": HASH, "budget": {"hostMemory": "2Gi"}},
            },
        ]
    )
    counts = {"selected": 12, "current": 11, "stale": 1, "failed": 0}
    policy_status = {"status": {"nodes": counts, "conditions": conditions()}}
    node_status = {
        "status": {
            "appliedHash": HASH,
            "agentVersion": "0.1.0",
            "memory": {"mapped": 1048576},
            "conditions": conditions(),
        }
    }
    for resource, status in (
        (("kvop", "chat", "-n", namespace), policy_status),
        (("ckvop", namespace), policy_status),
        (("kvon", node), node_status),
    ):
        patch = yaml.safe_dump(status)
        plane.kubectl("patch", *resource, "--subresource=status", "--type=merge", "-p", patch)

    ready = {"READY": "True", "REASON": "Programmed"}
    policy = row(plane, "kvop", "-n", namespace, "-o", "wide")
    assert policy.items() >= (ready | {"MODE": "Enforce", "NODES": "12", "CURRENT": "11"}).items()
    assert policy["PRIORITY"] == "7"
    cluster = row(plane, "ckvop", namespace)
    assert cluster.items() >= (ready | {"PRIORITY": "3", "NODES": "12", "CURRENT": "11"}).items()
    shown = row(plane, "kvon", node, "-o", "wide")
    assert shown.items() >= (ready | {"BUDGET": "2Gi", "MAPPED": "1048576", "HASH": HASH}).items()
    assert (shown["APPLIED"], shown["AGENT"]) == (HASH, "0.1.0")
    assert set(row(plane, "kvon", node)) == {"NAME", "READY", "REASON", "BUDGET", "AGE"}

    every = plane.kubectl("get", "kvoffload", "-A").stdout
    assert "kvoffloadpolicy.kvoffload.io/chat" in every
    assert f"clusterkvoffloadpolicy.kvoffload.io/{namespace}" in every
    assert f"kvoffloadnode.kvoffload.io/{node}" in every
    selected = plane.kubectl("get", "kvon", f"--field-selector=status.appliedHash={HASH}").stdout
    assert node in selected
    plane.kubectl("delete", "ckvop", namespace)
    plane.kubectl("delete", "kvon", node)


def test_status_is_a_subresource_and_generation_counts_spec_only(
    control_plane: ControlPlane, namespace: str
) -> None:
    path = f"/apis/kvoffload.io/v1alpha1/namespaces/{namespace}/kvoffloadpolicies"
    body = {
        "apiVersion": "kvoffload.io/v1alpha1",
        "kind": "KVOffloadPolicy",
        "metadata": {"name": "chat"},
        "spec": {},
        "status": {"observedGeneration": 7},
    }

    stored = control_plane.request(method="POST", path=path, body=body)
    assert "status" not in stored
    assert stored["spec"] == {"mode": "Enforce", "priority": 0, "requestOverride": "Tighten"}

    stored["status"] = {"observedGeneration": 1}
    after = control_plane.request(method="PUT", path=f"{path}/chat/status", body=stored)
    assert after["status"] == {"observedGeneration": 1}
    assert after["metadata"]["generation"] == 1
