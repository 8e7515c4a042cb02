"""Of a value that a limit cut, exactly the policy that set it is told: compiled as in a cluster."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.test_compilation import Cluster, one_pod

from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.policystatus import OnNode, decide

CAP = {"load": {"maxTokens": 100}}
LIMIT = {"load": {"maxTokens": 10}}


def accepted(cluster: Cluster, key: Key) -> tuple[str, str]:
    """Return reason and message of a policy's condition Accepted."""
    world = cluster.world
    store = world.policies if key.kind is Kind.POLICY else world.cluster_policies
    policy = store.get(name=key.name, namespace=key.namespace)
    assert policy is not None
    assert not policy.error
    plans = world.plans_of(key)
    assert plans
    made = decide(
        key=key,
        policy=policy,
        nodes={name: OnNode(plan=plan, live=None) for name, plan in plans.items()},
        conflict="",
        now="T1",
    )
    [found] = [item for item in made["conditions"] if item["type"] == "Accepted"]
    assert found["status"] == "True"
    return found["reason"], found["message"]


def test_of_two_cluster_policies_the_one_whose_default_was_cut_is_told() -> None:
    cluster = one_pod()
    base = cluster.cluster_policy("base", {"defaults": CAP})
    strict = cluster.cluster_policy("strict", {"limits": LIMIT})

    reason, message = accepted(cluster, base)
    assert reason == "Clamped"
    assert "load.maxTokens (from 100 by ClusterKVOffloadPolicy/strict#limits)" in message
    assert accepted(cluster, strict)[0] == "Accepted"


@pytest.mark.parametrize("defaults", [{}, {"defaults": {"load": {"maxTokens": 5}}}])
def test_of_a_team_s_value_the_team_is_told_and_not_the_administrator(
    defaults: dict[str, Any],
) -> None:
    cluster = one_pod()
    admin = cluster.cluster_policy("default", {"limits": LIMIT, **defaults})
    team = cluster.policy("chat", {"load": {"maxTokens": 50}})

    assert accepted(cluster, team)[0] == "Clamped"
    assert accepted(cluster, admin)[0] == "Accepted"


def test_a_policy_whose_name_begins_like_the_source_is_not_told() -> None:
    cluster = one_pod()
    first = cluster.cluster_policy("base-1", {"defaults": CAP})
    other = cluster.cluster_policy("base", {"limits": LIMIT})

    assert accepted(cluster, first)[0] == "Clamped"
    assert accepted(cluster, other)[0] == "Accepted"
