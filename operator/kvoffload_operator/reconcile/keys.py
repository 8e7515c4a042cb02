"""What the work queue holds."""

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """Which reconciler a key is for; the value is its name in metrics and logs."""

    NODE = "node"
    POLICY = "policy"
    CLUSTER_POLICY = "clusterpolicy"


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """One object to reconcile.

    Attributes:
        kind: Which reconciler.
        namespace: Empty for cluster-scoped objects.
        name: Name of the object.
    """

    kind: Kind
    namespace: str = ""
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name
