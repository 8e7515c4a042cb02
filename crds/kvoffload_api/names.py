"""Names that every component shares: the API group, kinds and typed identifiers."""

from __future__ import annotations

from typing import Final, NewType

GROUP: Final = "kvoffload.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

POLICY_KIND: Final = "KVOffloadPolicy"
CLUSTER_POLICY_KIND: Final = "ClusterKVOffloadPolicy"
NODE_KIND: Final = "KVOffloadNode"

# The one ClusterKVOffloadPolicy that may hold rollout settings.
DEFAULT_NAME: Final = "default"

NodeName = NewType("NodeName", str)
PodUID = NewType("PodUID", str)

# 16 hexadecimal digits (64 bits) of a canonical JSON text, see ``hashing``.
ConfigHash = NewType("ConfigHash", str)

# ``KVOffloadPolicy/namespace/name`` or ``ClusterKVOffloadPolicy/name``.
PolicyKey = NewType("PolicyKey", str)

# Who set a value: a PolicyKey, one with ``#defaults``, ``#limits`` or ``#nodeBudget``, or one of
# the words below.
Source = NewType("Source", str)

BUILT_IN: Final = Source("built-in")
REQUEST: Final = Source("request")
NO_ENTRY: Final = Source("no-entry")
NOBODY: Final = Source("")


def policy_key(*, namespace: str, name: str) -> PolicyKey:
    """Return the key of a KVOffloadPolicy."""
    return PolicyKey(f"{POLICY_KIND}/{namespace}/{name}")


def cluster_policy_key(*, name: str) -> PolicyKey:
    """Return the key of a ClusterKVOffloadPolicy."""
    return PolicyKey(f"{CLUSTER_POLICY_KIND}/{name}")
