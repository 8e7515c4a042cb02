"""Our own kinds, as the client addresses them."""

from typing import Final

from kvoffload_api.names import CLUSTER_POLICY_KIND, GROUP, NODE_KIND, POLICY_KIND, VERSION
from kvoffload_operator.kube.resources import Resource

# Label of every object that the operator makes.
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "kvoffload-operator"}

POLICIES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="kvoffloadpolicies",
    kind=POLICY_KIND,
    namespaced=True,
)
CLUSTER_POLICIES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="clusterkvoffloadpolicies",
    kind=CLUSTER_POLICY_KIND,
    namespaced=False,
)
OFFLOAD_NODES: Final = Resource(
    group=GROUP,
    version=VERSION,
    plural="kvoffloadnodes",
    kind=NODE_KIND,
    namespaced=False,
)
