"""What the work queue holds."""

import enum
from dataclasses import dataclass
from typing import Final


class Kind(enum.StrEnum):
    """Which reconciler a key is for; the value is its name in metrics and logs."""

    NODE = "node"
    POLICY = "policy"
    CLUSTER_POLICY = "clusterpolicy"
    AGENTS = "agents"


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


# All pools come from one object, so there is one key for all of their DaemonSets.
AGENTS_KEY: Final = Key(kind=Kind.AGENTS, name="pools")
