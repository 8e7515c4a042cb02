"""pytest fixtures that give tests a real control plane: see README.md beside this file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api import ApiError
from tests.cluster.binaries import MissingBinaryError
from tests.cluster.controlplane import ControlPlane

CRD_DIRECTORY = Path(__file__).resolve().parents[2] / "crds" / "generated"


def start() -> ControlPlane:
    """Start a control plane; a missing program fails the test with one line, never skips it."""
    try:
        return ControlPlane.start()
    except MissingBinaryError as error:
        missing = str(error)
    pytest.fail(missing, pytrace=False)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """Give the session's control plane."""
    with start() as plane:
        yield plane


@pytest.fixture
def own_control_plane() -> Iterator[ControlPlane]:
    """Give a control plane of this test alone, which it may stop, restart or break."""
    with start() as plane:
        yield plane


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> None:
    """Apply the project's CRDs and wait until they are served."""
    apply_crds(control_plane)


def apply_crds(plane: ControlPlane, *, directory: Path = CRD_DIRECTORY) -> None:
    """Apply every CRD in a folder and wait until each is Established."""
    files = sorted(directory.glob("*.yaml"))
    assert files, f"no CRDs in {directory}; `make generate` writes them"
    for file in files:
        plane.apply(file)
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """Give the name of a new namespace."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.create_namespace(name=name)
    yield name
    # Pods bound to a node would keep the namespace for ever: no kubelet confirms their end.
    control_plane.delete(f"/api/v1/namespaces/{name}/pods", query={"gracePeriodSeconds": "0"})
    control_plane.delete(f"/apis/kvoffload.io/v1alpha1/namespaces/{name}/kvoffloadpolicies")
    control_plane.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[str]:
    """Give the name of a new Node object."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    control_plane.create_node(name=name)
    yield name
    control_plane.delete(f"/api/v1/nodes/{name}")


__all__ = [
    "ApiError",
    "apply_crds",
    "control_plane",
    "crds",
    "namespace",
    "node",
    "own_control_plane",
]
