"""The three kinds as frozen models; the CRDs are generated from them."""

from kvoffload_api.models.base import ApiModel, Rule
from kvoffload_api.models.clusterpolicy import (
    ClusterKVOffloadPolicy,
    ClusterKVOffloadPolicySpec,
    NodeBudget,
    Rollout,
)
from kvoffload_api.models.meta import ObjectMeta
from kvoffload_api.models.node import (
    MAX_ENTRIES,
    MAX_PODS,
    DiskStatus,
    EngineStatus,
    Entry,
    KVOffloadNode,
    KVOffloadNodeSpec,
    KVOffloadNodeStatus,
    MemoryStatus,
    PodEntry,
)
from kvoffload_api.models.offload import (
    HostMemory,
    Load,
    LocalDisk,
    Offload,
    OffloadBlock,
    Store,
    Tier,
)
from kvoffload_api.models.policy import KVOffloadPolicy, KVOffloadPolicySpec
from kvoffload_api.models.selector import Labels, Operator, Requirement, Selector
from kvoffload_api.models.status import (
    MAX_VARIANTS,
    MESSAGE_MAX,
    Condition,
    EffectiveVariant,
    NodeCounts,
    PolicyStatus,
    Provenance,
)
from kvoffload_api.models.types import (
    Locality,
    Medium,
    Mode,
    RequestOverride,
    StoreScope,
    Verdict,
)

__all__ = [
    "MAX_ENTRIES",
    "MAX_PODS",
    "MAX_VARIANTS",
    "MESSAGE_MAX",
    "ApiModel",
    "ClusterKVOffloadPolicy",
    "ClusterKVOffloadPolicySpec",
    "Condition",
    "DiskStatus",
    "EffectiveVariant",
    "EngineStatus",
    "Entry",
    "HostMemory",
    "KVOffloadNode",
    "KVOffloadNodeSpec",
    "KVOffloadNodeStatus",
    "KVOffloadPolicy",
    "KVOffloadPolicySpec",
    "Labels",
    "Load",
    "LocalDisk",
    "Locality",
    "Medium",
    "MemoryStatus",
    "Mode",
    "NodeBudget",
    "NodeCounts",
    "ObjectMeta",
    "Offload",
    "OffloadBlock",
    "Operator",
    "PodEntry",
    "PolicyStatus",
    "Provenance",
    "RequestOverride",
    "Requirement",
    "Rollout",
    "Rule",
    "Selector",
    "Store",
    "StoreScope",
    "Tier",
    "Verdict",
]
