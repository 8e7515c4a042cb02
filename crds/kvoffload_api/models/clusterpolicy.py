"""ClusterKVOffloadPolicy: defaults, ceilings and budgets, set by admins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvoffload_api.models.base import ApiModel, NonEmptyModel, Rule
from kvoffload_api.models.meta import ObjectMeta
from kvoffload_api.models.offload import Offload, OffloadBlock
from kvoffload_api.models.selector import Selector
from kvoffload_api.models.status import PolicyStatus
from kvoffload_api.models.types import Bool, Priority, Quantity
from kvoffload_api.names import DEFAULT_NAME, PolicyKey, cluster_policy_key
from kvoffload_api.quantity import parse_quantity


class NodeBudget(NonEmptyModel):
    """Bytes that the agent of one node may use."""

    host_memory: Quantity | None = Field(
        default=None,
        description=(
            "Most bytes of host memory for chunks on a node, such as `512Gi`. The agent takes "
            "less where the node has less. Absent: what the agent's own limit allows."
        ),
    )
    local_disk: Quantity | None = Field(
        default=None,
        description="Most bytes of disk for chunks on a node, such as `2Ti`. Absent: no bound.",
    )
    reserved_memory: Quantity | None = Field(
        default=None,
        description=(
            "Bytes of host memory that the agent leaves free for others, such as `64Gi`. "
            "Absent: only the agent's built-in reserve."
        ),
    )


# Whole nodes or a share of them. 5,000 nodes are the most that Kubernetes supports.
MaxUnavailable = (
    Annotated[int, Field(strict=True, ge=1, le=5000)]
    | Annotated[str, Field(strict=True, pattern="^([1-9][0-9]?|100)%$", max_length=4)]
)


class Rollout(ApiModel):
    """How changes of bytes spread over nodes; other changes reach every node at once."""

    max_unavailable: MaxUnavailable = Field(
        default="5%",
        description=(
            "How many nodes may change bytes at a time, as a number such as `3` or a share such "
            "as `5%`."
        ),
        json_schema_extra={
            "x-kubernetes-int-or-string": True,
            "pattern": "^([1-9][0-9]?|100)%$",
            "maxLength": 4,
            "minimum": 1,
            "maximum": 5000,
        },
    )
    paused: Bool = Field(
        default=False, description="Whether no further nodes shall change bytes for now."
    )


def _ceiling(
    path: str, value: Callable[[Offload], int | None], *, is_quantity: bool = False
) -> Rule:
    """Return the rule that a default is within the same policy's limit."""
    block, field = path.split(".")
    present = " && ".join(
        f"has(self.{level}) && has(self.{level}.{block}) && has(self.{level}.{path})"
        for level in ("defaults", "limits")
    )
    within = (
        f"quantity(self.defaults.{path}).compareTo(quantity(self.limits.{path})) <= 0"
        if is_quantity
        else f"self.defaults.{path} <= self.limits.{path}"
    )

    def check(spec: ClusterKVOffloadPolicySpec) -> bool:
        default = value(spec.defaults) if spec.defaults else None
        limit = value(spec.limits) if spec.limits else None
        return default is None or limit is None or default <= limit

    return Rule(
        cel=f"!({present}) || {within}",
        message=(
            f"`defaults.{path}` must be less than or equal to `limits.{path}`: "
            f"lower the default or raise the limit"
        ),
        check=check,
        field_path=f".defaults.{block}.{field}",
        reason="FieldValueInvalid",
    )


def _capacity(text: str | None) -> int | None:
    return None if text is None else parse_quantity(text)


class ClusterKVOffloadPolicySpec(ApiModel):
    """Defaults, ceilings and budgets for the pods and nodes that are selected."""

    RULES: ClassVar = (
        _ceiling("load.maxTokens", lambda o: o.load.max_tokens if o.load else None),
        _ceiling("load.timeoutSeconds", lambda o: o.load.timeout_seconds if o.load else None),
        _ceiling("store.maxTokens", lambda o: o.store.max_tokens if o.store else None),
        _ceiling(
            "hostMemory.capacity",
            lambda o: _capacity(o.host_memory.capacity) if o.host_memory else None,
            is_quantity=True,
        ),
        _ceiling(
            "localDisk.capacity",
            lambda o: _capacity(o.local_disk.capacity) if o.local_disk else None,
            is_quantity=True,
        ),
        Rule(
            cel="has(self.defaults) || has(self.limits) || has(self.nodeBudget)",
            message=(
                "a policy must set at least one of `defaults`, `limits` or `nodeBudget`: "
                "add one, or delete the policy"
            ),
            check=lambda spec: bool(spec.defaults or spec.limits or spec.node_budget),
        ),
    )

    priority: Priority = Field(
        default=0,
        description=(
            "Of several policies the defaults and budget of the one with the highest priority "
            "come first; of equal ones those of the older. Limits apply all."
        ),
    )
    namespace_selector: Selector | None = Field(
        default=None, description="Namespaces whose pods this policy is for; absent: all."
    )
    pod_selector: Selector | None = Field(
        default=None, description="Pods that this policy is for; absent: all."
    )
    node_selector: Selector | None = Field(
        default=None,
        description="Nodes that this policy, its `nodeBudget` too, is for; absent: all.",
    )
    defaults: OffloadBlock | None = Field(
        default=None, description="Values for pods whose own policy does not set them."
    )
    limits: OffloadBlock | None = Field(
        default=None,
        description=(
            "Ceilings that no policy and no request may exceed. Of `minTokens`, `scope` and "
            "`minReuseCount`, which are no ceilings, nothing is taken."
        ),
    )
    node_budget: NodeBudget | None = Field(
        default=None, description="Bytes that the agents of the selected nodes may use."
    )
    rollout: Rollout | None = Field(
        default=None,
        description=("How changes of bytes spread over nodes; only in the policy named `default`."),
    )


class ClusterKVOffloadPolicy(ApiModel):
    """Defaults, ceilings and budgets for a cluster's pods and nodes, set by its admins."""

    RULES: ClassVar = (
        Rule(
            cel="self.metadata.name == 'default' || !has(self.spec.rollout)",
            message=(
                "`spec.rollout` is allowed only in the ClusterKVOffloadPolicy named `default`: "
                "set it there"
            ),
            check=lambda policy: (
                policy.metadata.name == DEFAULT_NAME or policy.spec.rollout is None
            ),
            field_path=".spec.rollout",
            reason="FieldValueForbidden",
        ),
    )

    api_version: Literal["kvoffload.io/v1alpha1"] = Field(
        default="kvoffload.io/v1alpha1", description="Version of this schema."
    )
    kind: Literal["ClusterKVOffloadPolicy"] = Field(
        default="ClusterKVOffloadPolicy", description="Kind of this object."
    )
    metadata: ObjectMeta = Field(description="Metadata of the object.")
    spec: ClusterKVOffloadPolicySpec = Field(description="Defaults, ceilings and budgets.")
    status: PolicyStatus | None = Field(
        default=None, description="What became of the policy; written by the operator."
    )

    @property
    def key(self) -> PolicyKey:
        """The name by which provenance and status speak of this policy."""
        return cluster_policy_key(name=self.metadata.name)
