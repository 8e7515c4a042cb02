"""What is kept of the objects that policies select: no more than a decision reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvoffload_operator.pools import AgentsConfig, PoolsError, parse_config

# Engine pods opt in with this label; the operator and the engine's pod template agree on it.
ENGINE_SELECTOR: Final = "kvoffload.io/engine=true"
# The server leaves out what is not bound to a node or has ended.
BOUND_AND_ALIVE: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

Labels = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """A Node.

    Attributes:
        uid: Of the object.
        labels: For selectors.
        deleting: Whether its deletion has begun.
    """

    uid: str
    labels: Labels
    deleting: bool


@dataclass(frozen=True, kw_only=True)
class NamespaceFacts:
    """A Namespace.

    Attributes:
        labels: For selectors.
    """

    labels: Labels


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """An opted-in engine pod that is bound to a node.

    Attributes:
        uid: Of the object; the agent finds the pod's entry by it.
        node: Name of its node.
        labels: For selectors.
    """

    uid: str
    node: str
    labels: Labels


@dataclass(frozen=True, kw_only=True)
class PoolsFacts:
    """The ConfigMap of the agent pools.

    Attributes:
        owner: Its name, namespace and uid: it owns the DaemonSets.
        config: What it says; ``None`` if that is wrong.
        error: What is wrong with it.
    """

    owner: Mapping[str, str]
    config: AgentsConfig | None
    error: str = ""


def pools_facts(item: Mapping[str, Any]) -> PoolsFacts:
    """Return what is kept of the ConfigMap of the agent pools."""
    owner = {key: item["metadata"][key] for key in ("name", "namespace", "uid")}
    try:
        return PoolsFacts(owner=owner, config=parse_config(item))
    except PoolsError as error:
        return PoolsFacts(owner=owner, config=None, error=str(error))


def node_facts(item: Mapping[str, Any]) -> NodeFacts:
    """Return what is kept of a Node."""
    metadata = item["metadata"]
    return NodeFacts(
        uid=metadata["uid"],
        labels=metadata.get("labels") or {},
        deleting="deletionTimestamp" in metadata,
    )


def namespace_facts(item: Mapping[str, Any]) -> NamespaceFacts:
    """Return what is kept of a Namespace."""
    return NamespaceFacts(labels=item["metadata"].get("labels") or {})


def pod_facts(item: Mapping[str, Any]) -> PodFacts:
    """Return what is kept of a Pod."""
    metadata = item["metadata"]
    return PodFacts(
        uid=metadata["uid"],
        node=(item.get("spec") or {}).get("nodeName", ""),
        labels=metadata.get("labels") or {},
    )


def without_bookkeeping(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object less what the API server keeps for itself and changes at every write."""
    hidden = {"managedFields", "resourceVersion"}
    metadata = {key: value for key, value in item["metadata"].items() if key not in hidden}
    return {**item, "metadata": metadata}
