"""The offload block: what policies set, limits cut and entries carry (``operator.md`` 1.4)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field

from kvoffload_api.models.base import ApiModel, NonEmptyModel, Rule
from kvoffload_api.models.types import (
    Locality,
    Medium,
    Quantity,
    ReuseCount,
    Seconds,
    StoreScope,
    Tokens,
)

# Four combinations exist; twice that leaves room for media to come.
_MAX_TIERS: Final = 8


class Tier(ApiModel):
    """A kind of tier. Every tier declares both, so both are needed to name one."""

    medium: Medium = Field(description="What the tier keeps chunks on: `CPU` or `Storage`.")
    locality: Locality = Field(description="Where the tier is: `Local` (this node) or `Remote`.")


def _no_duplicates(block: Load | Store) -> bool:
    return block.tiers is None or len(set(block.tiers)) == len(block.tiers)


_UNIQUE_TIERS: Final = Rule(
    cel=(
        "!has(self.tiers) || self.tiers.all(x, "
        "self.tiers.exists_one(y, y.medium == x.medium && y.locality == x.locality))"
    ),
    message="`tiers` must not name a tier twice: remove the duplicate",
    check=_no_duplicates,
    field_path=".tiers",
    # With FieldValueDuplicate the API server would not show the message.
    reason="FieldValueInvalid",
)

Tiers = Annotated[
    tuple[Tier, ...],
    Field(max_length=_MAX_TIERS, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
]


class Load(NonEmptyModel):
    """What may be loaded from the tiers."""

    RULES: ClassVar = (
        Rule(
            cel="!has(self.minTokens) || !has(self.maxTokens) || self.minTokens <= self.maxTokens",
            message=(
                "`minTokens` must be less than or equal to `maxTokens`: "
                "lower `minTokens` or raise `maxTokens`"
            ),
            check=lambda load: (
                load.min_tokens is None
                or load.max_tokens is None
                or load.min_tokens <= load.max_tokens
            ),
            field_path=".minTokens",
            reason="FieldValueInvalid",
        ),
        _UNIQUE_TIERS,
    )

    max_tokens: Tokens | None = Field(
        default=None,
        description=(
            "Most tokens that one request may load from the tiers. 0 loads nothing. "
            "Absent: inherited, and without any policy uncapped."
        ),
    )
    min_tokens: Tokens | None = Field(
        default=None,
        description=(
            "Fewer tokens than this are not loaded but computed. At most `maxTokens`. "
            "Absent: inherited, and without any policy 0."
        ),
    )
    timeout_seconds: Seconds | None = Field(
        default=None,
        description=(
            "Seconds after which a load is given up and its tokens are computed. "
            "Absent: inherited, and without any policy 5."
        ),
    )
    tiers: Tiers | None = Field(
        default=None,
        description=(
            "Tiers that may be loaded from, besides host memory of the node, which always may. "
            "An empty list allows host memory only. Absent: inherited, and without any policy all."
        ),
    )


class Store(NonEmptyModel):
    """What may be stored in the tiers."""

    RULES: ClassVar = (_UNIQUE_TIERS,)

    max_tokens: Tokens | None = Field(
        default=None,
        description=(
            "Length of the prefix, in tokens from a request's start, that may be stored. "
            "0 stores nothing. Absent: inherited, and without any policy uncapped."
        ),
    )
    scope: StoreScope | None = Field(
        default=None,
        description=(
            "`PromptOnly` stores prompts, `PromptAndOutput` generated tokens too. "
            "Absent: inherited, and without any policy `PromptOnly`."
        ),
    )
    min_reuse_count: ReuseCount | None = Field(
        default=None,
        description=(
            "How often a chunk must have been offered before it is stored; 0 and 1 store at once. "
            "Absent: inherited, and without any policy 0."
        ),
    )
    tiers: Tiers | None = Field(
        default=None,
        description=(
            "Tiers that may be stored to, besides host memory of the node, through which "
            "everything passes. An empty list allows host memory only. "
            "Absent: inherited, and without any policy all."
        ),
    )


class HostMemory(NonEmptyModel):
    """Host memory for chunks."""

    capacity: Quantity | None = Field(
        default=None,
        description=(
            "Most bytes of host memory on one node, summed over the pods that this policy wins, "
            "such as `64Gi`. Their own chunks are evicted first. "
            "Absent: inherited, and without any policy the node's budget."
        ),
    )


class LocalDisk(NonEmptyModel):
    """Disk of the node for chunks."""

    capacity: Quantity | None = Field(
        default=None,
        description=(
            "Most bytes of disk on one node, summed over the pods that this policy wins, "
            "such as `500Gi`. Absent: inherited, and without any policy no disk is used."
        ),
    )


class Offload(ApiModel):
    """The offload block."""

    load: Load | None = Field(default=None, description="What may be loaded from the tiers.")
    store: Store | None = Field(default=None, description="What may be stored in the tiers.")
    host_memory: HostMemory | None = Field(default=None, description="Host memory for chunks.")
    local_disk: LocalDisk | None = Field(
        default=None, description="Disk of the node for chunks; without it no disk is used."
    )


class OffloadBlock(Offload, NonEmptyModel):
    """The offload block where it stands alone: it must set something."""
