"""Which value a pod has for each field, and who set it; pure functions over API objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

ENGINE_LABEL: Final = "kvoffload.io/engine"


class ExplainError(Exception):
    """There is nothing to explain; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One field of a pod's effective configuration.

    Attributes:
        field: Path in the offload block, such as ``load.maxTokens``.
        value: As text; ``-`` if nobody limits it.
        source: Who set it.
        clamped_from: The value a limit cut down, or an empty string.
        clamped_source: Who set that value, or an empty string.
    """

    field: str
    value: str
    source: str
    clamped_from: str
    clamped_source: str


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A pod's effective configuration.

    Attributes:
        pod: ``namespace/name``.
        node: Name of its node.
        entry: Hash of its entry.
        source: The policy that won the pod.
        in_force: Whether the node's agent has applied the configuration that holds the entry.
        rows: One for each field.
    """

    pod: str
    node: str
    entry: str
    source: str
    in_force: bool
    rows: tuple[Row, ...]


def node_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the node of an opted-in pod.

    Raises:
        ExplainError: The pod is not opted in, or not bound to a node yet.
    """
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    if (metadata.get("labels") or {}).get(ENGINE_LABEL) != "true":
        raise ExplainError(
            f"pod {name} is not opted in, so no policy applies to it; "
            f"label its template with {ENGINE_LABEL}: 'true'"
        )
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        raise ExplainError(
            f"pod {name} is not bound to a node yet; "
            f"`kubectl describe pod -n {metadata['namespace']} {metadata['name']}` says why"
        )
    return str(node)


def explain(pod: Mapping[str, Any], node: Mapping[str, Any]) -> Explanation:
    """Return the effective configuration of a pod.

    Args:
        pod: The Pod.
        node: The KVOffloadNode of its node.

    Raises:
        ExplainError: The pod has no entry there yet.
    """
    metadata = pod["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    spec = node["spec"]
    entry = _entry(spec, uid=metadata["uid"])
    if entry is None:
        raise ExplainError(
            f"pod {name} has no entry on node {node['metadata']['name']} yet, "
            "so it loads and stores nothing; is the operator running? "
            "`kubectl get pods -n kvoffload-system`"
        )
    status = node.get("status") or {}
    return Explanation(
        pod=name,
        node=node["metadata"]["name"],
        entry=entry["hash"],
        source=entry.get("source") or "built-in",
        in_force=bool(spec.get("hash")) and status.get("appliedHash") == spec.get("hash"),
        rows=tuple(_row(entry, item) for item in entry.get("provenance") or ()),
    )


def _entry(spec: Mapping[str, Any], *, uid: str) -> Mapping[str, Any] | None:
    for pod in spec.get("pods") or ():
        if pod["uid"] == uid:
            for entry in spec.get("entries") or ():
                if entry["hash"] == pod["entry"]:
                    found: Mapping[str, Any] = entry
                    return found
    return None


def _row(entry: Mapping[str, Any], item: Mapping[str, Any]) -> Row:
    return Row(
        field=item["field"],
        value=text_of(_lookup(entry, item["field"])),
        source=item["source"],
        clamped_from=str(item.get("clampedFrom") or ""),
        clamped_source=str(item.get("clampedSource") or ""),
    )


def _lookup(entry: Mapping[str, Any], path: str) -> Any:
    value: Any = entry
    for part in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def text_of(value: Any) -> str:
    """Return a field's value as one word of a table."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return "/".join(str(part) for part in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(text_of(item) for item in value) or "(none)"
    return str(value)
