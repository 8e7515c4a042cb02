"""KVOffloadPolicy: what the pods of a namespace may load and store."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from kvoffload_api.models.base import ApiModel, Rule
from kvoffload_api.models.meta import ObjectMeta
from kvoffload_api.models.offload import Offload
from kvoffload_api.models.selector import Selector
from kvoffload_api.models.status import PolicyStatus
from kvoffload_api.models.types import Mode, Priority, RequestOverride
from kvoffload_api.names import PolicyKey, policy_key


class KVOffloadPolicySpec(Offload):
    """What a namespace's pods may load and store."""

    RULES: ClassVar = (
        Rule(
            cel=(
                "self.mode != 'Disabled' || "
                "!(has(self.load) || has(self.store) || has(self.hostMemory) "
                "|| has(self.localDisk))"
            ),
            message=(
                "`mode: Disabled` must not be combined with `load`, `store`, `hostMemory` or "
                "`localDisk`: remove them, or use `mode: DryRun` to keep them without effect"
            ),
            check=lambda spec: (
                spec.mode is not Mode.DISABLED
                or not (spec.load or spec.store or spec.host_memory or spec.local_disk)
            ),
            field_path=".mode",
            reason="FieldValueInvalid",
        ),
    )

    mode: Mode = Field(
        default=Mode.ENFORCE,
        description=(
            "`Enforce` applies this policy. `DryRun` only shows in status what it would do. "
            "`Disabled` makes the pods that this policy wins load and store nothing."
        ),
    )
    priority: Priority = Field(
        default=0,
        description=(
            "Of several policies that select a pod the one with the highest priority wins; "
            "of equal ones the older."
        ),
    )
    pod_selector: Selector | None = Field(
        default=None, description="Pods that this policy is for; absent: all of the namespace."
    )
    request_override: RequestOverride = Field(
        default=RequestOverride.TIGHTEN,
        description=(
            "`Tighten` lets a request set lower caps and fewer tiers for itself, never more. "
            "`Ignore` ignores what requests ask for."
        ),
    )


class KVOffloadPolicy(ApiModel):
    """What the pods of a namespace may load and store, set by the namespace's users."""

    api_version: Literal["kvoffload.io/v1alpha1"] = Field(
        default="kvoffload.io/v1alpha1", description="Version of this schema."
    )
    kind: Literal["KVOffloadPolicy"] = Field(
        default="KVOffloadPolicy", description="Kind of this object."
    )
    metadata: ObjectMeta = Field(description="Metadata of the object.")
    spec: KVOffloadPolicySpec = Field(description="What the pods may load and store.")
    status: PolicyStatus | None = Field(
        default=None, description="What became of the policy; written by the operator."
    )

    @property
    def key(self) -> PolicyKey:
        """The name by which provenance and status speak of this policy."""
        return policy_key(namespace=self.metadata.namespace, name=self.metadata.name)
