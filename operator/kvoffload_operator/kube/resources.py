"""Which resource a request is about, and where it lives in the API."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource of the API.

    Attributes:
        group: API group, empty for the core group.
        version: API version.
        plural: Name in paths.
        kind: Name in objects.
        namespaced: Whether its objects live in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of objects of this resource."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of one object, or of its subresource.

        Args:
            namespace: Empty for cluster-scoped resources and for all namespaces.
            name: Empty for the collection.
            subresource: Such as ``status``.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        parts.extend(part for part in (name, subresource) if part)
        return "/".join(parts)


NODES: Final = Resource(group="", version="v1", plural="nodes", kind="Node", namespaced=False)
NAMESPACES: Final = Resource(
    group="", version="v1", plural="namespaces", kind="Namespace", namespaced=False
)
PODS: Final = Resource(group="", version="v1", plural="pods", kind="Pod", namespaced=True)
LEASES: Final = Resource(
    group="coordination.k8s.io", version="v1", plural="leases", kind="Lease", namespaced=True
)
CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True
)
DAEMONSETS: Final = Resource(
    group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True
)
EVENTS: Final = Resource(
    group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True
)
