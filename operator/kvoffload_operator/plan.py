"""What the compiled configuration of a node says, and about which policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvoffload_operator.reconcile.keys import Key

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one policy has to do with one node.

    Attributes:
        entries: Effective blocks that it brings about, by their hash.
        would_be: The same for a policy that is only tried (``mode: DryRun``).
        lost_to: Policies, as ``namespace/name``, that won pods it selects.
        budget: Whether it sets the node's budget.
    """

    entries: frozenset[str] = frozenset()
    would_be: frozenset[str] = frozenset()
    lost_to: frozenset[str] = frozenset()
    budget: bool = False

    @property
    def active(self) -> bool:
        """Whether the node's configuration would differ without the policy."""
        return self.budget or bool(self.entries)


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """The configuration of one node.

    Attributes:
        spec: The ``spec`` of its KVOffloadNode, hash included.
        shares: What each policy has to do with it; no policy without anything to do.
        blocks: Every effective block named in ``shares``, by hash, as in ``spec.entries``.
        left_out: Pods for which the object has no room; they load and store nothing.
    """

    spec: Json
    shares: Mapping[Key, Share] = field(default_factory=dict)
    blocks: Mapping[str, Json] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """The hash that the node's agent reports once the configuration is in force."""
        return str(self.spec["hash"])

    @property
    def policies(self) -> frozenset[Key]:
        """Every policy that has to do with the node."""
        return frozenset(self.shares)
