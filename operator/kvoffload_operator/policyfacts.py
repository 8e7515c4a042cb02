"""What is kept of a policy: the parsed object, or why it cannot be used, and the status so far."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvoffload_api.models import ClusterKVOffloadPolicy, KVOffloadPolicy, Mode

Json = Mapping[str, Any]
Model = KVOffloadPolicy | ClusterKVOffloadPolicy


@dataclass(frozen=True, kw_only=True)
class PolicyFacts:
    """A policy of either kind.

    Attributes:
        namespace: Empty for a cluster policy.
        name: Of the object.
        uid: Of the object.
        generation: Of the spec.
        model: The policy without its status; ``None`` if it is not valid.
        error: Why it is not valid; empty if it is.
        status: As the server has it.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    model: Model | None
    error: str
    status: Json

    def same_spec(self, other: "PolicyFacts") -> bool:
        """Whether at most the status differs."""
        return (self.uid, self.generation, self.model) == (
            other.uid,
            other.generation,
            other.model,
        )

    @property
    def dry_run(self) -> bool:
        """Whether the policy is only tried."""
        return isinstance(self.model, KVOffloadPolicy) and self.model.spec.mode is Mode.DRY_RUN


def policy_facts(item: Json) -> PolicyFacts:
    """Return what is kept of a KVOffloadPolicy."""
    return _facts(item, kind=KVOffloadPolicy)


def cluster_policy_facts(item: Json) -> PolicyFacts:
    """Return what is kept of a ClusterKVOffloadPolicy."""
    return _facts(item, kind=ClusterKVOffloadPolicy)


def _facts(item: Json, *, kind: type[Model]) -> PolicyFacts:
    metadata = item["metadata"]
    # The server bumps the version at each write of a status, which changes no policy.
    read = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "generation", "creationTimestamp")
        if name in metadata
    }
    model: Model | None = None
    error = ""
    try:
        # An object may be older than a rule of the schema: the same checks run again.
        model = kind.read({"metadata": read, "spec": item.get("spec") or {}})
    except ValidationError as fault:
        error = _text(fault)
    return PolicyFacts(
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        model=model,
        error=error,
        status=item.get("status") or {},
    )


def _text(fault: ValidationError) -> str:
    first = fault.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return f"{path}: {first['msg']}" if path else first["msg"]
