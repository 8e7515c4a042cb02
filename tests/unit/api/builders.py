"""Short ways to write policies, pods and nodes, and hypothesis strategies of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from kvoffload_api import resolution
from kvoffload_api.models import (
    ClusterKVOffloadPolicySpec,
    KVOffloadPolicySpec,
    Locality,
    Medium,
    StoreScope,
)
from kvoffload_api.names import NodeName, PodUID
from kvoffload_api.resolution import (
    ClusterPolicy,
    NamespacedPolicy,
    NodeView,
    PodView,
    PolicySet,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NODE = NodeView(name=NodeName("n1"), labels={"size": "small"})
CPU_LOCAL = {"medium": "CPU", "locality": "Local"}
DISK_LOCAL = {"medium": "Storage", "locality": "Local"}
DISK_REMOTE = {"medium": "Storage", "locality": "Remote"}


def pod(uid: str = "u1", *, namespace: str = "team-a", **labels: str) -> PodView:
    return PodView(
        namespace=namespace,
        name=f"pod-{uid}",
        uid=PodUID(uid),
        labels=labels or {"app": "vllm"},
        namespace_labels={"tier": "gold"},
    )


def namespaced(
    name: str = "chat", *, namespace: str = "team-a", age: int = 0, **spec: Any
) -> NamespacedPolicy:
    """``age`` in seconds: a higher one is older."""
    return NamespacedPolicy(
        namespace=namespace,
        name=name,
        created=EPOCH - timedelta(seconds=age),
        spec=KVOffloadPolicySpec.parse(spec),
    )


def cluster(name: str = "default", *, age: int = 0, **spec: Any) -> ClusterPolicy:
    return ClusterPolicy(
        name=name,
        created=EPOCH - timedelta(seconds=age),
        spec=ClusterKVOffloadPolicySpec.parse(spec),
    )


def policies(*items: NamespacedPolicy | ClusterPolicy) -> PolicySet:
    return PolicySet(
        namespaced=tuple(item for item in items if isinstance(item, NamespacedPolicy)),
        cluster=tuple(item for item in items if isinstance(item, ClusterPolicy)),
    )


CAPPED = resolution.compile(
    policies(
        namespaced(
            load={"maxTokens": 8192, "tiers": [CPU_LOCAL, DISK_LOCAL]}, store={"maxTokens": 4096}
        )
    ),
    pod(),
    NODE,
)
"""What a policy allows that names both caps and two tiers."""

# Small domains, so that ties, equal values and empty intersections are common.
_tokens = st.sampled_from([0, 1, 16, 256, 8192, 2**31 - 1])
_tiers = st.lists(
    st.fixed_dictionaries(
        {
            "medium": st.sampled_from([str(item) for item in Medium]),
            "locality": st.sampled_from([str(item) for item in Locality]),
        }
    ),
    max_size=4,
    unique_by=lambda item: (item["medium"], item["locality"]),
)
_capacities = st.fixed_dictionaries(
    {"capacity": st.sampled_from(["1Mi", "1048577", "1G", "1Gi", "64Gi", "1024Ti"])}
)
_labels = st.sampled_from(
    [None, {}, {"matchLabels": {"app": "vllm"}}, {"matchLabels": {"app": "x"}}]
)


def _blocks(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields).filter(bool)


_load = _blocks(
    {
        "maxTokens": _tokens,
        "minTokens": _tokens,
        "timeoutSeconds": st.sampled_from([1, 5, 600]),
        "tiers": _tiers,
    }
).filter(lambda block: block.get("minTokens", 0) <= block.get("maxTokens", 2**31))
_store = _blocks(
    {
        "maxTokens": _tokens,
        "scope": st.sampled_from([str(item) for item in StoreScope]),
        "minReuseCount": st.sampled_from([0, 2, 1000]),
        "tiers": _tiers,
    }
)
offload = st.fixed_dictionaries(
    {},
    optional={
        "load": _load,
        "store": _store,
        "hostMemory": _capacities,
        "localDisk": _capacities,
    },
)


def _without_none(spec: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if value is not None}


@st.composite
def namespaced_policies(draw: st.DrawFn, name: str) -> NamespacedPolicy:
    mode = draw(st.sampled_from(["Enforce", "Enforce", "DryRun", "Disabled"]))
    spec = _without_none(
        {
            "mode": mode,
            "priority": draw(st.sampled_from([0, 10])),
            "podSelector": draw(_labels),
            "requestOverride": draw(st.sampled_from(["Tighten", "Ignore"])),
        }
    )
    if mode != "Disabled":
        spec |= draw(offload)
    namespace = draw(st.sampled_from(["team-a", "team-b"]))
    return namespaced(name, namespace=namespace, age=draw(st.sampled_from([0, 1])), **spec)


@st.composite
def cluster_policies(draw: st.DrawFn, name: str, *, only_limits: bool = False) -> ClusterPolicy:
    spec = _without_none(
        {
            "priority": draw(st.sampled_from([0, 10])),
            "podSelector": draw(_labels),
            "namespaceSelector": draw(
                st.sampled_from(
                    [None, {"matchLabels": {"tier": "gold"}}, {"matchLabels": {"tier": "x"}}]
                )
            ),
            "nodeSelector": draw(
                st.sampled_from(
                    [None, {"matchLabels": {"size": "small"}}, {"matchLabels": {"size": "x"}}]
                )
            ),
        }
    )
    kinds = (
        ["limits"]
        if only_limits
        else draw(st.sampled_from([["defaults"], ["limits"], ["nodeBudget"]]))
    )
    for kind in kinds:
        if kind == "nodeBudget":
            spec[kind] = {"hostMemory": draw(_capacities)["capacity"], "localDisk": "64Gi"}
        else:
            spec[kind] = draw(offload.filter(bool))
    return cluster(name, age=draw(st.sampled_from([0, 1])), **spec)


@st.composite
def policy_sets(draw: st.DrawFn) -> PolicySet:
    return PolicySet(
        namespaced=tuple(
            draw(namespaced_policies(f"p{index}")) for index in range(draw(st.integers(0, 4)))
        ),
        cluster=tuple(
            draw(cluster_policies(f"c{index}")) for index in range(draw(st.integers(0, 4)))
        ),
    )


# What a client may send: valid, malformed and hostile.
_anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["8", "1k", 10**4000, -(10**4000), "CPU"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
_matchers = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "medium": st.sampled_from(["cpu", "CPU", "storage", "Storage", "gpu", None, 1]),
            "locality": st.sampled_from(["local", "REMOTE", "far", None, []]),
            "Medium": st.just("CPU"),
        },
    )
    | _anything,
    max_size=3,
)
requests = (
    st.none()
    | _anything
    | st.fixed_dictionaries(
        {},
        optional={
            "max_load_tokens": _tokens | _anything,
            "max_offload_tokens": _tokens | _anything,
            "kv_load_tiers": _matchers | _anything,
            "do_remote_prefill": st.booleans(),
        },
    )
)
