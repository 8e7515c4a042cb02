"""Objects that must be taken and objects that must be refused, with the words of the refusal.

The models, the CEL rules and the real API server are all held to this one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvoffload_api.models import ClusterKVOffloadPolicy, KVOffloadNode, KVOffloadPolicy
from kvoffload_api.models.base import ApiModel

MODELS: dict[str, type[ApiModel]] = {
    "KVOffloadPolicy": KVOffloadPolicy,
    "ClusterKVOffloadPolicy": ClusterKVOffloadPolicy,
    "KVOffloadNode": KVOffloadNode,
}
FORMS = "with one of the suffixes Ki, Mi, Gi, Ti (binary) or k, M, G, T (decimal), such as 64Gi"
LOCAL = {"medium": "CPU", "locality": "Local"}
HASH = "0123456789abcdef"


@dataclass(frozen=True, kw_only=True)
class Case:
    """``refused``: part of the API server's message; empty if the object is taken."""

    name: str
    kind: str
    spec: dict[str, Any]
    refused: str = ""
    object_name: str = "x"

    def document(self, *, namespace: str = "team-a") -> dict[str, Any]:
        metadata = {"name": self.object_name}
        if self.kind == "KVOffloadPolicy":
            metadata["namespace"] = namespace
        return {
            "apiVersion": "kvoffload.io/v1alpha1",
            "kind": self.kind,
            "metadata": metadata,
            "spec": self.spec,
        }


def _policy(name: str, spec: dict[str, Any], refused: str = "") -> Case:
    return Case(name=name, kind="KVOffloadPolicy", spec=spec, refused=refused)


def _cluster(name: str, spec: dict[str, Any], refused: str = "", *, object_name: str = "x") -> Case:
    return Case(
        name=name,
        kind="ClusterKVOffloadPolicy",
        spec=spec,
        refused=refused,
        object_name=object_name,
    )


def _node(name: str, spec: dict[str, Any], refused: str = "") -> Case:
    return Case(name=name, kind="KVOffloadNode", spec=spec, refused=refused)


def _default_and_limit(path: str, default: Any, limit: Any) -> dict[str, Any]:
    block, field = path.split(".")
    return {"defaults": {block: {field: default}}, "limits": {block: {field: limit}}}


_CEILINGS = [
    ("load.maxTokens", 9, 8),
    ("load.timeoutSeconds", 9, 8),
    ("store.maxTokens", 9, 8),
    ("hostMemory.capacity", "1Gi", "1G"),
    ("localDisk.capacity", "1025Mi", "1Gi"),
]

TAKEN = [
    _policy("a policy that sets nothing", {}),
    _policy(
        "a policy that sets everything",
        {
            "mode": "Enforce",
            "priority": 1000,
            "podSelector": {
                "matchLabels": {"app": "vllm", "kvoffload.io/engine": "true"},
                "matchExpressions": [
                    {"key": "a.b/c", "operator": "In", "values": ["x", ""]},
                    {"key": "d", "operator": "DoesNotExist"},
                ],
            },
            "load": {
                "maxTokens": 2147483647,
                "minTokens": 2147483647,
                "timeoutSeconds": 600,
                "tiers": [LOCAL, {"medium": "Storage", "locality": "Remote"}],
            },
            "store": {
                "maxTokens": 0,
                "scope": "PromptAndOutput",
                "minReuseCount": 1000,
                "tiers": [],
            },
            "hostMemory": {"capacity": "30Gi"},
            "localDisk": {"capacity": "1024Ti"},
            "requestOverride": "Ignore",
        },
    ),
    _policy("a cap of zero", {"load": {"maxTokens": 0, "minTokens": 0}}),
    _policy("no tier but host memory", {"load": {"tiers": []}}),
    _policy("the smallest capacity", {"hostMemory": {"capacity": "1Mi"}}),
    _policy("a decimal capacity", {"hostMemory": {"capacity": "500G"}}),
    _policy("plain bytes", {"hostMemory": {"capacity": "1048577"}}),
    _policy("Disabled alone", {"mode": "Disabled", "priority": 5}),
    _policy("DryRun with values", {"mode": "DryRun", "load": {"maxTokens": 5}}),
    _cluster(
        "the cluster's defaults",
        {
            "defaults": {"load": {"maxTokens": 32768}, "hostMemory": {"capacity": "32Gi"}},
            "limits": {"hostMemory": {"capacity": "128Gi"}, "load": {"tiers": [LOCAL]}},
            "nodeBudget": {"hostMemory": "512Gi", "localDisk": "1Ti", "reservedMemory": "64Gi"},
            "rollout": {"maxUnavailable": "5%"},
        },
        object_name="default",
    ),
    _cluster(
        "a rollout in whole nodes",
        {"nodeBudget": {"hostMemory": "1Gi"}, "rollout": {"maxUnavailable": 3, "paused": True}},
        object_name="default",
    ),
    *(
        _cluster(f"a default at its limit: {path}", _default_and_limit(path, limit, limit))
        for path, _, limit in _CEILINGS
    ),
    _cluster("limits without defaults", {"limits": {"store": {"maxTokens": 1}}}),
    _cluster(
        "a default of what the limit leaves open",
        {"defaults": {"load": {"maxTokens": 9}}, "limits": {"load": {"timeoutSeconds": 1}}},
    ),
    _node("a node without pods", {"hash": HASH}),
    _node(
        "a node with a pod",
        {
            "hash": HASH,
            "budget": {"hostMemory": "1Gi"},
            "entries": [
                {
                    "hash": HASH,
                    "source": "KVOffloadPolicy/team-a/chat",
                    "bucket": "KVOffloadPolicy/team-a/chat",
                    "load": {"maxTokens": 5},
                    "provenance": [{"field": "load.maxTokens", "source": "built-in"}],
                }
            ],
            "pods": [{"uid": "u", "namespace": "team-a", "name": "p", "entry": HASH}],
        },
    ),
]

_NO_QUANTITIES = ["-5", "0", "0.5", "1e3", "30GB", "30 Gi", "-1Gi", "1500m", "1E", "", "01Gi"]

REFUSED = [
    *(
        _policy(f"a capacity of {text!r}", {"hostMemory": {"capacity": text}}, FORMS)
        for text in _NO_QUANTITIES
    ),
    *(
        _policy(
            f"a capacity of {text!r}",
            {"localDisk": {"capacity": text}},
            "must be at least 1Mi and at most 1024Ti: give a whole number",
        )
        for text in ["64", "1023Ki", "1025Ti", "999999999999999999T"]
    ),
    _policy("a number as capacity", {"hostMemory": {"capacity": 64}}, "must be of type string"),
    _cluster("a budget of '30GB'", {"nodeBudget": {"hostMemory": "30GB"}}, FORMS),
    _policy(
        "contradictory caps",
        {"load": {"minTokens": 2, "maxTokens": 1}},
        "`minTokens` must be less than or equal to `maxTokens`: lower `minTokens` or raise",
    ),
    _policy("a negative cap", {"load": {"maxTokens": -1}}, "greater than or equal to 0"),
    _policy(
        "a cap over 32 bits", {"load": {"maxTokens": 2**31}}, "less than or equal to 2147483647"
    ),
    _policy("a cap as text", {"load": {"maxTokens": "8"}}, "must be of type int"),
    _policy("a cap as boolean", {"load": {"maxTokens": True}}, "must be of type int"),
    _policy("no time to load", {"load": {"timeoutSeconds": 0}}, "greater than or equal to 1"),
    _policy("too long a load", {"load": {"timeoutSeconds": 601}}, "less than or equal to 600"),
    _policy(
        "an empty load",
        {"load": {}},
        "must set at least one of maxTokens, minTokens, timeoutSeconds, tiers; leave the block out",
    ),
    _policy("an empty store", {"store": {}}, "must set at least one of maxTokens, scope"),
    _cluster("an empty budget", {"nodeBudget": {}}, "must set at least one of hostMemory"),
    _policy("an empty hostMemory", {"hostMemory": {}}, "must set at least one of capacity"),
    _policy(
        "Disabled with settings",
        {"mode": "Disabled", "load": {"maxTokens": 1}},
        "remove them, or use `mode: DryRun` to keep them without effect",
    ),
    _policy(
        "Disabled with disk",
        {"mode": "Disabled", "localDisk": {"capacity": "1Gi"}},
        "`mode: Disabled` must not be combined with",
    ),
    _policy(
        "an unknown mode", {"mode": "Off"}, 'supported values: "Enforce", "DryRun", "Disabled"'
    ),
    _policy("a priority over 1000", {"priority": 1001}, "less than or equal to 1000"),
    _policy(
        "an unknown medium",
        {"load": {"tiers": [{"medium": "GPU", "locality": "Local"}]}},
        'supported values: "CPU", "Storage"',
    ),
    _policy(
        "a tier without locality",
        {"load": {"tiers": [{"medium": "CPU"}]}},
        "locality: Required value",
    ),
    _policy(
        "a tier twice", {"store": {"tiers": [LOCAL, LOCAL]}}, "must not name a tier twice: remove"
    ),
    _policy(
        "values that are missing",
        {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "`values` must be given with `In` and `NotIn`",
    ),
    _policy(
        "values that have no use",
        {
            "podSelector": {
                "matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]
            }
        },
        "left out with `Exists` and `DoesNotExist`",
    ),
    _policy("an unknown field", {"load": {"maxTokenz": 5}}, 'unknown field "spec.load.maxTokenz"'),
    *(
        _cluster(
            f"a default above its limit: {path}",
            _default_and_limit(path, default, limit),
            f"`defaults.{path}` must be less than or equal to `limits.{path}`: lower the default",
        )
        for path, default, limit in _CEILINGS
    ),
    _cluster(
        "a policy for nothing",
        {"priority": 5},
        "must set at least one of `defaults`, `limits` or `nodeBudget`: add one, or delete",
    ),
    _cluster("empty defaults", {"defaults": {}}, "must set at least one of load, store"),
    _cluster(
        "a rollout on another name",
        {"nodeBudget": {"hostMemory": "1Gi"}, "rollout": {"paused": True}},
        "allowed only in the ClusterKVOffloadPolicy named `default`: set it there",
    ),
    *(
        _cluster(
            f"a rollout of {share!r}",
            {"nodeBudget": {"hostMemory": "1Gi"}, "rollout": {"maxUnavailable": share}},
            refused,
            object_name="default",
        )
        for share, refused in [
            ("101%", "should match"),
            ("0%", "should match"),
            ("5", "should match"),
            (0, "greater than or equal to 1"),
        ]
    ),
    _node("a node without a hash", {}, "hash: Required value"),
    _node("a hash that is none", {"hash": "xyz"}, "should match"),
]
