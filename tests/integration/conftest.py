"""Makes the control plane's fixtures available to every integration test."""

from __future__ import annotations

import pytest
from tests.cluster.fixtures import control_plane, crds, namespace, node, own_control_plane
from tests.harness.processes import Process


@pytest.fixture(scope="session")
def operator_processes() -> list[Process]:
    """Give the operators that work on the session's control plane, running or ended."""
    return []


@pytest.fixture
def no_operator(operator_processes: list[Process]) -> None:
    """End the operators, for a test that writes itself what an operator would write over."""
    for process in operator_processes:
        if process.running:
            process.stop()


__all__ = ["control_plane", "crds", "namespace", "node", "own_control_plane"]
