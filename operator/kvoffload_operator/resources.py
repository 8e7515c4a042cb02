"""Our own kinds, as the client addresses them."""

from typing import Final

from kvoffload_operator.kube.resources import Resource

GROUP: Final = "kvoffload.io"
VERSION: Final = "v1alpha1"

POLICIES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="kvoffloadpolicies",
    kind="KVOffloadPolicy",
    namespaced=True,
)
CLUSTER_POLICIES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="clusterkvoffloadpolicies",
    kind="ClusterKVOffloadPolicy",
    namespaced=False,
)
OFFLOAD_NODES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="kvoffloadnodes",
    kind="KVOffloadNode",
    namespaced=False,
)
