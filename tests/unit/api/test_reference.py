"""``compile`` against a second writing of ``operator.md`` 1.6, from policies' documents alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.api.builders import (
    EPOCH,
    NODE,
    namespaced,
    namespaced_policies,
    pod,
    policy_sets,
    requests,
)

from kvoffload_api import resolution
from kvoffload_api.names import Source
from kvoffload_api.resolution import (
    ClusterPolicy,
    Effective,
    NamespacedPolicy,
    PodView,
    PolicySet,
    node_budget,
    standings,
    tighten,
)

POD = pod()
# The smallest and largest binary and decimal suffixes that the builders write.
SUFFIXES = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "G": 10**9, "": 1}

# Ceilings; of the others a limit says nothing.
LOWEST = ["load.maxTokens", "load.timeoutSeconds", "store.maxTokens", "hostMemory.capacity"]
FEWEST = ["load.tiers", "store.tiers"]
BUILT_IN = {
    "load.minTokens": 0,
    "load.timeoutSeconds": 5,
    "store.scope": "PromptOnly",
    "store.minReuseCount": 0,
}


def flat(block: dict[str, Any] | None) -> dict[str, Any]:
    """Return ``{"load.maxTokens": 8, ...}`` of an offload block."""
    found = {
        f"{part}.{name}": value
        for part in ("load", "store", "hostMemory", "localDisk")
        for name, value in ((block or {}).get(part) or {}).items()
    }
    return {path: plain(path, value) for path, value in found.items()}


def plain(path: str, value: Any) -> Any:
    if path.endswith("tiers"):
        return [(item["medium"], item["locality"]) for item in value]
    return size(value) if path.endswith("capacity") else value


def size(text: str) -> int:
    digits = text.rstrip("GMTi")
    return int(digits) * SUFFIXES[text.removeprefix(digits)]


def selects(selector: dict[str, Any] | None, labels: dict[str, str]) -> bool:
    """Judge what the builders write: ``matchLabels`` only."""
    wanted = (selector or {}).get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items())


def by_rank(items: Iterable[Any]) -> list[Any]:
    """Sort in four passes, the least telling first."""
    found = sorted(items, key=lambda item: item.name)
    found.sort(key=lambda item: getattr(item, "namespace", ""))
    found.sort(key=lambda item: item.created)
    found.sort(key=lambda item: item.spec.priority, reverse=True)
    return found


def winner_of(policies: Iterable[NamespacedPolicy]) -> NamespacedPolicy | None:
    candidates = [
        item
        for item in policies
        if item.namespace == POD.namespace
        and item.spec.document()["mode"] != "DryRun"
        and selects(item.spec.document().get("podSelector"), dict(POD.labels))
    ]
    return next(iter(by_rank(candidates)), None)


def matching(policies: Iterable[ClusterPolicy]) -> list[ClusterPolicy]:
    return [
        item
        for item in by_rank(policies)
        if selects(item.spec.document().get("podSelector"), dict(POD.labels))
        and selects(item.spec.document().get("nodeSelector"), dict(NODE.labels))
        and selects(item.spec.document().get("namespaceSelector"), dict(POD.namespace_labels))
    ]


def budget_of(policies: Iterable[ClusterPolicy]) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in reversed(by_rank(policies)):
        document = item.spec.document()
        if selects(document.get("nodeSelector"), dict(NODE.labels)):
            found |= {name: size(text) for name, text in document.get("nodeBudget", {}).items()}
    return found


def expected(policies: PolicySet) -> dict[str, Any]:
    """Return the values that 1.6 gives to ``POD``; absent: no bound."""
    winner, cluster = winner_of(policies.namespaced), matching(policies.cluster)
    values: dict[str, Any] = dict(BUILT_IN)
    for item in reversed(cluster):
        values |= flat(item.spec.document().get("defaults"))
    if winner:
        own = winner.spec.document()
        values |= flat(own)
        if own["mode"] == "Disabled":
            values |= {"load.maxTokens": 0, "store.maxTokens": 0}
    budget = budget_of(policies.cluster)
    limits = [flat(item.spec.document().get("limits")) for item in cluster] + [
        {
            path: budget[name]
            for name, path in (
                ("hostMemory", "hostMemory.capacity"),
                ("localDisk", "localDisk.capacity"),
            )
            if name in budget
        }
    ]
    met: dict[str, Any] = reduce(meet, limits, values)
    if "load.maxTokens" in met:
        met["load.minTokens"] = min(met["load.minTokens"], met["load.maxTokens"])
    return met


def meet(values: dict[str, Any], limit: dict[str, Any]) -> dict[str, Any]:
    met = dict(values)
    for path in LOWEST:
        if path in limit:
            met[path] = min(values.get(path, limit[path]), limit[path])
    for path in FEWEST:
        if path in limit:
            met[path] = [tier for tier in values.get(path, limit[path]) if tier in limit[path]]
    if "localDisk.capacity" in limit and "localDisk.capacity" in values:
        met["localDisk.capacity"] = min(values["localDisk.capacity"], limit["localDisk.capacity"])
    return met


def shown(effective: Effective) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in effective.values().items():
        if value is not None:
            found[path] = (
                [(str(tier.medium), str(tier.locality)) for tier in value]
                if isinstance(value, tuple)
                else value
            )
    return found


def compiled(policies: PolicySet, to: PodView = POD) -> Effective:
    return resolution.compile(policies, to, NODE)


@given(policy_sets())
def test_a_pod_gets_what_the_specification_gives(policies: PolicySet) -> None:
    assert shown(compiled(policies)) == expected(policies)


@given(policy_sets())
def test_the_winner_of_the_specification_is_named(policies: PolicySet) -> None:
    winner, found = winner_of(policies.namespaced), compiled(policies)

    if winner:
        assert found.source == found.bucket == f"KVOffloadPolicy/{winner.namespace}/{winner.name}"
        assert str(found.request_override) == winner.spec.document()["requestOverride"]
    else:
        assert found.bucket == "Namespace/team-a"
        assert str(found.request_override) == "Tighten"


@given(policy_sets())
def test_the_budget_is_that_of_the_specification(policies: PolicySet) -> None:
    found, wanted = node_budget(policies, NODE), budget_of(policies.cluster)

    assert found.host_memory == wanted.get("hostMemory")
    assert found.local_disk == wanted.get("localDisk")
    assert set(found.sources) == set(wanted)


def without(policies: PolicySet, name: str) -> PolicySet:
    """Return the set without a policy, as an informer's cache is after a delete."""
    return replace(
        policies,
        namespaced=tuple(item for item in policies.namespaced if item.name != name),
        cluster=tuple(item for item in policies.cluster if item.name != name),
    )


@given(policy_sets(), st.data())
def test_a_policy_that_is_gone_leaves_nothing_behind(
    policies: PolicySet, data: st.DataObject
) -> None:
    names = [item.name for item in policies.namespaced]
    names += [item.name for item in policies.cluster]
    name = data.draw(st.sampled_from(names or ["none"]))
    compiled(policies)

    rest = without(policies, name)

    assert shown(compiled(rest)) == expected(rest)
    for _, source in compiled(rest).provenance:
        assert name not in re.split("[/#]", source.source)


@given(policy_sets())
def test_policies_in_dry_run_change_nothing(policies: PolicySet) -> None:
    enforced = tuple(
        item for item in policies.namespaced if item.spec.document()["mode"] != "DryRun"
    )

    assert compiled(replace(policies, namespaced=enforced)) == compiled(policies)


@given(policy_sets(), requests)
def test_a_pod_whose_policy_is_disabled_loads_and_stores_nothing(
    policies: PolicySet, request: Any
) -> None:
    off = namespaced("off", mode="Disabled", priority=1000)
    found = compiled(replace(policies, namespaced=(*policies.namespaced, off)))

    assert found.source_of("load.maxTokens") == Source(off.key)
    assert found.source_of("store.maxTokens") == Source(off.key)
    for effective in (found, tighten(found, request).effective):
        assert effective.loads_nothing
        assert effective.stores_nothing


@given(policy_sets(), namespaced_policies("zz"))
def test_a_policy_of_the_lowest_rank_that_loses_changes_nothing(
    policies: PolicySet, other: NamespacedPolicy
) -> None:
    assume(winner_of(policies.namespaced) is not None)
    last = replace(
        other, created=EPOCH + timedelta(days=1), spec=other.spec.model_copy(update={"priority": 0})
    )
    more = replace(policies, namespaced=(last, *policies.namespaced))

    assert compiled(more) == compiled(policies)


@given(policy_sets())
def test_standings_name_the_winner_of_the_specification(policies: PolicySet) -> None:
    winner = winner_of(policies.namespaced)
    found = standings(policies, [POD])

    assert set(found) == {item.key for item in policies.namespaced}
    for item in policies.namespaced:
        selected = item.namespace == POD.namespace and selects(
            item.spec.document().get("podSelector"), dict(POD.labels)
        )
        wins = selected and (item is winner or item.spec.document()["mode"] == "DryRun")
        assert found[item.key].pods == ((POD.uid,) if wins else ())
        lost = {POD.uid: winner.key} if winner and selected and not wins else {}
        assert found[item.key].lost == lost
