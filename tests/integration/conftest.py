"""Makes the control plane's fixtures available to every integration test."""

from __future__ import annotations

from tests.cluster.fixtures import control_plane, crds, namespace, node, own_control_plane

__all__ = ["control_plane", "crds", "namespace", "node", "own_control_plane"]
