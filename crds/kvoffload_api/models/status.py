"""Parts of status that several kinds share."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from kvoffload_api.models.base import ApiModel
from kvoffload_api.models.offload import Offload
from kvoffload_api.models.types import Count, Generation, Hash, SourceText, Timestamp, unique_by
from kvoffload_api.reasons import ConditionStatus

# A message that lists more is cut: it must fit a terminal and be stable (``operator.md`` 1.7).
MESSAGE_MAX: Final = 300
_MAX_CONDITIONS: Final = 8
# Node-scoped cluster policies make variants; more are counted but not shown.
MAX_VARIANTS: Final = 8


class Condition(ApiModel):
    """One aspect of an object's state, as Kubernetes' own conditions."""

    type: Annotated[str, Field(strict=True, min_length=1, max_length=64)] = Field(
        description="Name of the aspect: `Accepted`, `Programmed`, `Ready` or `Degraded`."
    )
    status: ConditionStatus = Field(description="`True`, `False` or `Unknown`.")
    reason: Annotated[
        str, Field(strict=True, max_length=64, pattern="^[A-Za-z]([A-Za-z0-9]*)$")
    ] = Field(description="Why, in one word for programs.")
    message: Annotated[str, Field(strict=True, max_length=MESSAGE_MAX)] = Field(
        description="Why, in words for people; empty if there is nothing to add."
    )
    last_transition_time: Timestamp = Field(description="When `status` last changed.")
    observed_generation: Generation | None = Field(
        default=None, description="The object's `metadata.generation` that this is about."
    )


Conditions = Annotated[
    tuple[Condition, ...],
    Field(
        max_length=_MAX_CONDITIONS,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    ),
    unique_by("type"),
]


class Provenance(ApiModel):
    """Who set a field of an effective block."""

    field: Annotated[str, Field(strict=True, min_length=1, max_length=64)] = Field(
        description="Path of the field in the block, such as `load.maxTokens`."
    )
    source: SourceText = Field(
        description=(
            "Who set it: a policy, `#defaults`, `#limits` or `#nodeBudget` of a cluster policy, "
            "or `built-in`."
        )
    )
    clamped_from: Annotated[str, Field(strict=True, max_length=256)] | None = Field(
        default=None, description="The value before a limit cut it; absent if none did."
    )
    clamped_source: SourceText | None = Field(
        default=None, description="Who set the value before a limit cut it; absent if none did."
    )


ProvenanceList = Annotated[
    tuple[Provenance, ...],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]


class NodeCounts(ApiModel):
    """On how many nodes a policy is in force."""

    selected: Count = Field(description="Nodes that hold pods of this policy.")
    current: Count = Field(description="Of these, nodes whose agent has applied this generation.")
    stale: Count = Field(description="Of these, nodes whose agent has not applied it yet.")
    failed: Count = Field(description="Of these, nodes whose agent refused it.")


class EffectiveVariant(Offload):
    """What pods of a policy get, after inheritance and limits."""

    hash: Hash = Field(description="Identifies this variant; nodes' entries have the same.")
    nodes: Count = Field(description="Nodes on which pods get this variant.")
    provenance: ProvenanceList | None = Field(
        default=None, description="Who set each field of this variant."
    )


class PolicyStatus(ApiModel):
    """What became of a policy; written by the operator."""

    observed_generation: Generation | None = Field(
        default=None, description="The `metadata.generation` that this status is about."
    )
    nodes: NodeCounts | None = Field(
        default=None, description="On how many nodes the policy is in force."
    )
    effective: (
        Annotated[
            tuple[EffectiveVariant, ...],
            Field(
                max_length=MAX_VARIANTS,
                json_schema_extra={
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["hash"],
                },
            ),
            unique_by("hash"),
        ]
        | None
    ) = Field(
        default=None,
        description="What pods of this policy get; in `mode: DryRun` what they would get.",
    )
    conditions: Conditions | None = Field(
        default=None, description="`Accepted`, `Programmed` and their summary `Ready`."
    )
