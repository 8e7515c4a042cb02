"""KVOffloadNode: what the agent of one node shall do, and what it does."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from kvoffload_api.models.base import ApiModel
from kvoffload_api.models.clusterpolicy import NodeBudget
from kvoffload_api.models.meta import ObjectMeta
from kvoffload_api.models.offload import Offload
from kvoffload_api.models.status import Conditions, ProvenanceList
from kvoffload_api.models.types import (
    Bytes,
    Generation,
    Hash,
    Name,
    RequestOverride,
    ShortText,
    SourceText,
    Timestamp,
    Uid,
    Verdict,
)

# kubelet's default is 110 pods a node, and few large nodes allow up to 250.
MAX_PODS: Final = 256
MAX_ENTRIES: Final = 64

# One writer each, so that the server keeps one line of ownership instead of one for each leaf.
_ATOMIC: Final[dict[str, object]] = {"x-kubernetes-list-type": "atomic"}


class Entry(Offload):
    """One effective block; pods that get the same share it."""

    hash: Hash = Field(description="64-bit hash of the rest of this entry, in hexadecimal.")
    source: SourceText = Field(
        description="The policy that won the pods of this entry, or `built-in`."
    )
    bucket: SourceText = Field(
        description="Whose bytes they count against: the winning policy, or the namespace."
    )
    request_override: RequestOverride = Field(
        default=RequestOverride.TIGHTEN, description="What a request may do to these values."
    )
    provenance: ProvenanceList | None = Field(
        default=None, description="Who set each field of this entry."
    )


class PodEntry(ApiModel):
    """An engine pod on the node and its entry."""

    uid: Uid = Field(description="Uid of the pod.")
    namespace: Name = Field(description="Namespace of the pod.")
    name: Name = Field(description="Name of the pod.")
    entry: Hash = Field(description="Hash of the pod's entry.")


class KVOffloadNodeSpec(ApiModel):
    """What the agent of the node shall do; compiled by the operator from the policies."""

    hash: Hash = Field(description="64-bit hash of the rest of spec, in hexadecimal.")
    budget: NodeBudget | None = Field(
        default=None, description="Bytes that the agent of this node may use."
    )
    entries: (
        Annotated[tuple[Entry, ...], Field(max_length=MAX_ENTRIES, json_schema_extra=_ATOMIC)]
        | None
    ) = Field(default=None, description="The distinct effective blocks of the pods.")
    pods: (
        Annotated[tuple[PodEntry, ...], Field(max_length=MAX_PODS, json_schema_extra=_ATOMIC)]
        | None
    ) = Field(
        default=None,
        description="Engine pods of this node. A pod that is not here loads and stores nothing.",
    )


class MemoryStatus(ApiModel):
    """Host memory of the agent, in bytes, rounded to 64 MiB so that it does not flap."""

    requested: Bytes | None = Field(default=None, description="What the budget asks for.")
    mapped: Bytes | None = Field(
        default=None, description="What the arena holds; at most `requested`."
    )
    populated: Bytes | None = Field(
        default=None, description="Of `mapped`, what is backed by memory already."
    )
    limit: Bytes | None = Field(
        default=None, description="The tightest limit that the agent's cgroups or node set."
    )
    headroom: Bytes | None = Field(
        default=None, description="What could be taken in addition without passing `limit`."
    )
    verdict: Verdict | None = Field(
        default=None, description="The guard's last answer: `Admit`, `Shrink` or `Refuse`."
    )
    limited_by: ShortText | None = Field(
        default=None, description="What made the guard shrink or refuse."
    )


class DiskStatus(ApiModel):
    """Disk of the agent, in bytes, rounded to 64 MiB so that it does not flap."""

    capacity: Bytes | None = Field(default=None, description="What chunks may use.")
    used: Bytes | None = Field(default=None, description="What chunks use.")
    available: Bytes | None = Field(default=None, description="What the file system has left.")
    verdict: Verdict | None = Field(
        default=None, description="The guard's last answer: `Admit`, `Shrink` or `Refuse`."
    )
    limited_by: ShortText | None = Field(
        default=None, description="What made the guard shrink or refuse."
    )


class EngineStatus(ApiModel):
    """An engine that is connected to the agent."""

    pod_uid: Uid = Field(alias="podUID", description="Uid of the engine's pod.")
    fingerprint: ShortText = Field(
        description="Identifies model and layout; engines share chunks only if it is equal."
    )
    connected_since: Timestamp = Field(description="When the engine connected.")


class KVOffloadNodeStatus(ApiModel):
    """What the agent of the node does; written by the agent."""

    applied_hash: Hash | None = Field(default=None, description="The `spec.hash` that is in force.")
    observed_generation: Generation | None = Field(
        default=None, description="The `metadata.generation` that this status is about."
    )
    agent_version: ShortText | None = Field(default=None, description="Version of the agent.")
    boot_id: ShortText | None = Field(
        default=None, alias="bootID", description="Names one life of the agent."
    )
    memory: MemoryStatus | None = Field(default=None, description="Host memory of the agent.")
    disk: DiskStatus | None = Field(default=None, description="Disk of the agent.")
    engines: (
        Annotated[tuple[EngineStatus, ...], Field(max_length=MAX_PODS, json_schema_extra=_ATOMIC)]
        | None
    ) = Field(default=None, description="Engines that are connected.")
    conditions: Conditions | None = Field(
        default=None, description="`Ready`, and `Degraded` if something needs attention."
    )


class KVOffloadNode(ApiModel):
    """What the agent of one node shall do (`spec`) and does (`status`); not for people to edit."""

    api_version: Literal["kvoffload.io/v1alpha1"] = Field(
        default="kvoffload.io/v1alpha1", description="Version of this schema."
    )
    kind: Literal["KVOffloadNode"] = Field(
        default="KVOffloadNode", description="Kind of this object."
    )
    metadata: ObjectMeta = Field(description="Metadata of the object.")
    spec: KVOffloadNodeSpec | None = Field(
        default=None, description="What the agent shall do; written by the operator."
    )
    status: KVOffloadNodeStatus | None = Field(
        default=None, description="What the agent does; written by the agent."
    )
