"""Laws that hold for all policies and requests (``operator.md`` 1.6)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.builders import NODE, cluster_policies, namespaced, pod, policy_sets, requests

from kvoffload_api import resolution
from kvoffload_api.models import Entry
from kvoffload_api.resolution import (
    FIELDS,
    ClusterPolicy,
    Effective,
    PolicySet,
    compile_dry_run,
    tighten,
    within,
)

POD = pod()


def compiled(policies: PolicySet) -> Effective:
    return resolution.compile(policies, POD, NODE)


def no_wider(narrow: Effective, wide: Effective) -> bool:
    narrow_values, wide_values = narrow.values(), wide.values()
    return all(within(rule, narrow_values[rule.path], wide_values[rule.path]) for rule in FIELDS)


@given(policy_sets(), st.randoms())
def test_the_order_of_policies_does_not_matter(
    policies: PolicySet, shuffler: random.Random
) -> None:
    shuffled = PolicySet(
        namespaced=tuple(shuffler.sample(policies.namespaced, len(policies.namespaced))),
        cluster=tuple(shuffler.sample(policies.cluster, len(policies.cluster))),
    )

    assert compiled(shuffled) == compiled(policies)


@given(policy_sets(), cluster_policies("extra", only_limits=True))
def test_adding_a_limit_never_widens(policies: PolicySet, limit: ClusterPolicy) -> None:
    limited = replace(policies, cluster=(*policies.cluster, limit))

    assert no_wider(compiled(limited), compiled(policies))


@given(policy_sets(), cluster_policies("extra", only_limits=True))
def test_limits_are_idempotent(policies: PolicySet, limit: ClusterPolicy) -> None:
    once = replace(policies, cluster=(*policies.cluster, limit))
    twice = replace(policies, cluster=(*policies.cluster, limit, replace(limit, name="again")))

    assert compiled(twice).values() == compiled(once).values()


@given(policy_sets())
def test_every_limit_that_selects_the_pod_is_kept(policies: PolicySet) -> None:
    found = compiled(policies).values()

    for policy in policies.cluster:
        if policy.selects(POD, NODE):
            for rule in FIELDS:
                if rule.path in policy.limits:
                    assert within(rule, found[rule.path], policy.limits[rule.path])


@given(policy_sets())
def test_policies_that_do_not_select_the_pod_equal_none(policies: PolicySet) -> None:
    winner = policies.winner(POD)
    relevant = PolicySet(
        namespaced=(winner,) if winner else (),
        cluster=tuple(
            item
            for item in policies.cluster
            if item.selects(POD, NODE) or (item.budget and item.selects_node(NODE))
        ),
    )

    assert compiled(relevant) == compiled(policies)


@given(policy_sets())
def test_each_field_has_exactly_one_source_that_exists(policies: PolicySet) -> None:
    found = compiled(policies)

    assert [path for path, _ in found.provenance] == [rule.path for rule in FIELDS]
    known = {"built-in"} | {item.key for item in policies.namespaced}
    for item in policies.cluster:
        known |= {f"{item.key}#{part}" for part in ("defaults", "limits", "nodeBudget")}
    for path, source in found.provenance:
        assert source.source in known
        assert source.clamped_source in known | {""}
        assert bool(source.clamped_from) == bool(source.clamped_source), path
        assert source.source != source.clamped_source or path == "load.minTokens"


@given(policy_sets())
def test_a_source_set_that_very_value(policies: PolicySet) -> None:
    found = compiled(policies)
    given_by: dict[str, Any] = {item.key: item.settings for item in policies.namespaced}
    for item in policies.cluster:
        given_by[f"{item.key}#defaults"] = item.defaults
    values = found.values()

    for path, source in found.provenance:
        if source.source in given_by and not source.clamped_source:
            assert given_by[source.source][path] == values[path]


@given(policy_sets())
def test_the_minimum_is_never_above_the_cap(policies: PolicySet) -> None:
    load = compiled(policies).load

    assert load.max_tokens is None or load.min_tokens <= load.max_tokens


@given(policy_sets())
def test_an_entry_keeps_everything(policies: PolicySet) -> None:
    found = compiled(policies)
    stored = Entry.read(found.to_entry().document())

    assert Effective.from_entry(stored) == found
    assert stored.hash == found.hash


@given(policy_sets(), policy_sets())
def test_hashes_are_equal_for_equal_values_only(left: PolicySet, right: PolicySet) -> None:
    one, other = compiled(left), compiled(right)

    assert (one.hash == other.hash) == (one == other)


@given(policy_sets())
def test_a_dry_run_is_what_enforcing_would_give(policies: PolicySet) -> None:
    trial = namespaced("trial", mode="DryRun", priority=1000, load={"maxTokens": 7})
    enforced = namespaced("trial", priority=1000, load={"maxTokens": 7})
    with_trial = replace(policies, namespaced=(*policies.namespaced, trial))
    with_enforced = replace(policies, namespaced=(*policies.namespaced, enforced))

    assert compile_dry_run(with_trial, trial, POD, NODE) == compiled(with_enforced)
    assert compiled(with_trial) == compiled(policies)


@given(policy_sets(), requests)
def test_a_request_only_narrows(policies: PolicySet, request: Any) -> None:
    policy = compiled(policies)

    assert no_wider(tighten(policy, request).effective, policy)


@given(policy_sets(), requests)
def test_tightening_is_idempotent(policies: PolicySet, request: Any) -> None:
    once = tighten(compiled(policies), request)

    assert tighten(once.effective, request) == once


@given(policy_sets(), requests)
def test_a_malformed_field_is_as_if_absent(policies: PolicySet, request: Any) -> None:
    policy = compiled(policies)
    found = tighten(policy, request)
    bad = {item.field for item in found.invalid} - {"kv_load_tiers"}
    repaired = (
        {key: value for key, value in request.items() if key not in bad}
        if isinstance(request, dict)
        else None
    )

    assert tighten(policy, repaired).effective == found.effective


@given(policy_sets(), requests)
def test_reasons_are_short_and_one_for_each_field(policies: PolicySet, request: Any) -> None:
    invalid = tighten(compiled(policies), request).invalid

    assert len({item.field for item in invalid}) == len(invalid)
    for item in invalid:
        assert item.field in {
            "max_load_tokens",
            "max_offload_tokens",
            "kv_load_tiers",
            "kv_transfer_params",
        }
        assert 0 < len(item.reason) < 200
