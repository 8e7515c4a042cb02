"""What a policy's status says, decided from facts alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kvoffload_operator.plan import NodePlan, Share
from kvoffload_operator.policyfacts import PolicyFacts, cluster_policy_facts, policy_facts
from kvoffload_operator.reconcile.keys import Key, Kind
from kvoffload_operator.reconcile.policystatus import OnNode, decide, same, without_counters

KEY = Key(kind=Kind.POLICY, namespace="team-a", name="chat")
ENTRY = "00000000000000aa"
SPEC_HASH = "00000000000000ff"
BLOCK: dict[str, Any] = {
    "hash": ENTRY,
    "source": "KVOffloadPolicy/team-a/chat",
    "bucket": "KVOffloadPolicy/team-a/chat",
    "load": {"maxTokens": 8},
    "provenance": [{"field": "load.maxTokens", "source": "KVOffloadPolicy/team-a/chat"}],
}


def policy(
    spec: Mapping[str, Any] | None = None,
    *,
    generation: int = 3,
    status: Mapping[str, Any] | None = None,
) -> PolicyFacts:
    return policy_facts(
        {
            "metadata": {
                "name": "chat",
                "namespace": "team-a",
                "uid": "u1",
                "generation": generation,
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"load": {"maxTokens": 8}} if spec is None else spec,
            "status": status or {},
        }
    )


def on_node(
    share: Share | None = None,
    *,
    applied: str = SPEC_HASH,
    block: Mapping[str, Any] = BLOCK,
    degraded: str = "",
) -> OnNode:
    conditions = [{"type": "Degraded", "status": "True", "reason": degraded}] if degraded else []
    return OnNode(
        plan=NodePlan(
            spec={"hash": SPEC_HASH},
            shares={KEY: share or Share(entries=frozenset({ENTRY}))},
            blocks={ENTRY: block},
        ),
        live={
            "spec": {"hash": SPEC_HASH},
            "status": {"appliedHash": applied, "conditions": conditions},
        },
    )


def status(
    facts: PolicyFacts, nodes: Mapping[str, OnNode], *, conflict: str = "", now: str = "T1"
) -> dict[str, Any]:
    return decide(key=KEY, policy=facts, nodes=nodes, conflict=conflict, now=now)


def verdict(made: Mapping[str, Any], kind: str) -> tuple[str, str]:
    [found] = [item for item in made["conditions"] if item["type"] == kind]
    return found["status"], found["reason"]


def test_in_force_on_every_node_means_ready() -> None:
    made = status(policy(), {"n1": on_node(), "n2": on_node()})

    assert verdict(made, "Accepted") == ("True", "Accepted")
    assert verdict(made, "Programmed") == ("True", "Programmed")
    assert verdict(made, "Ready") == ("True", "Programmed")
    assert made["nodes"] == {"selected": 2, "current": 2, "stale": 0, "failed": 0}


def test_one_agent_that_is_behind_means_reconciling() -> None:
    made = status(policy(), {"n1": on_node(), "n2": on_node(applied="0" * 16)})

    assert verdict(made, "Ready") == ("False", "Reconciling")
    assert made["nodes"] == {"selected": 2, "current": 1, "stale": 1, "failed": 0}


def test_an_agent_that_applied_what_is_not_planned_any_more_is_behind() -> None:
    node = on_node()
    stale = OnNode(
        plan=NodePlan(spec={"hash": "e" * 16}, shares=node.plan.shares, blocks=node.plan.blocks),
        live=node.live,
    )

    assert verdict(status(policy(), {"n1": stale}), "Ready") == ("False", "Reconciling")


def test_a_node_without_a_kvoffloadnode_is_behind() -> None:
    node = OnNode(plan=on_node().plan, live=None)

    assert verdict(status(policy(), {"n1": node}), "Ready") == ("False", "Reconciling")


def test_an_agent_that_refused_is_counted_and_named() -> None:
    made = status(policy(), {"n1": on_node(applied="0" * 16, degraded="ConfigRejected")})
    [programmed] = [item for item in made["conditions"] if item["type"] == "Programmed"]

    assert made["nodes"]["failed"] == 1
    assert "n1" in programmed["message"]


def test_no_matching_pod_is_no_failure() -> None:
    assert verdict(status(policy(), {}), "Ready") == ("True", "NoMatchingPods")


def test_a_policy_that_lost_all_its_pods_is_overridden_and_names_the_winner() -> None:
    share = Share(lost_to=frozenset({"team-a/strong"}))
    made = status(policy(), {"n1": on_node(share)})
    [programmed] = [item for item in made["conditions"] if item["type"] == "Programmed"]

    assert verdict(made, "Ready") == ("False", "Overridden")
    assert "team-a/strong" in programmed["message"]
    assert made["nodes"]["selected"] == 0


def test_a_policy_that_lost_some_of_its_pods_is_partially_programmed() -> None:
    share = Share(entries=frozenset({ENTRY}), lost_to=frozenset({"team-a/strong"}))

    assert verdict(status(policy(), {"n1": on_node(share)}), "Ready") == (
        "True",
        "PartiallyProgrammed",
    )


def test_the_younger_of_two_equal_policies_is_not_accepted() -> None:
    made = status(policy(), {}, conflict="team-a/older")

    assert verdict(made, "Accepted") == ("False", "Conflicted")
    assert verdict(made, "Ready") == ("False", "Conflicted")


def test_a_policy_older_than_a_rule_it_breaks_is_invalid() -> None:
    facts = policy({"load": {"maxTokens": 5, "minTokens": 10}})
    made = status(facts, {})

    assert verdict(made, "Accepted") == ("False", "Invalid")
    assert verdict(made, "Programmed") == ("Unknown", "Pending")
    assert "minTokens" in made["conditions"][0]["message"]


def test_a_value_of_ours_that_a_limit_cut_is_told() -> None:
    cut = {
        "field": "load.maxTokens",
        "source": "ClusterKVOffloadPolicy/default#limits",
        "clampedFrom": "8",
        "clampedSource": "KVOffloadPolicy/team-a/chat",
    }
    made = status(policy(), {"n1": on_node(block={**BLOCK, "provenance": [cut]})})

    assert verdict(made, "Accepted") == ("True", "Clamped")
    foreign = {**cut, "clampedSource": "ClusterKVOffloadPolicy/other#defaults"}
    made = status(policy(), {"n1": on_node(block={**BLOCK, "provenance": [foreign]})})
    assert verdict(made, "Accepted") == ("True", "Accepted")


def test_a_default_of_a_cluster_policy_that_another_s_limit_cut_is_told_too() -> None:
    key = Key(kind=Kind.CLUSTER_POLICY, name="base")
    facts = cluster_policy_facts(
        {
            "metadata": {"name": "base", "uid": "u", "generation": 1},
            "spec": {"defaults": {"load": {"maxTokens": 8}}},
        }
    )
    cut = {
        "field": "load.maxTokens",
        "source": "ClusterKVOffloadPolicy/strict#limits",
        "clampedFrom": "8",
        "clampedSource": "ClusterKVOffloadPolicy/base#defaults",
    }
    plan = NodePlan(
        spec={"hash": SPEC_HASH},
        shares={key: Share(entries=frozenset({ENTRY}))},
        blocks={ENTRY: {**BLOCK, "provenance": [cut]}},
    )
    nodes = {"n1": OnNode(plan=plan, live=None)}
    made = decide(key=key, policy=facts, nodes=nodes, conflict="", now="T1")

    assert verdict(made, "Accepted") == ("True", "Clamped")


def test_a_dry_run_is_ready_and_shows_what_it_would_do() -> None:
    facts = policy({"mode": "DryRun", "load": {"maxTokens": 8}})
    made = status(facts, {"n1": on_node(Share(would_be=frozenset({ENTRY})))})

    assert verdict(made, "Ready") == ("True", "Programmed")
    assert [item["hash"] for item in made["effective"]] == [ENTRY]
    assert made["nodes"]["selected"] == 0


def test_effective_shows_the_block_with_its_provenance_and_not_the_bookkeeping() -> None:
    [variant] = status(policy(), {"n1": on_node(), "n2": on_node()})["effective"]

    assert variant == {
        "hash": ENTRY,
        "nodes": 2,
        "load": {"maxTokens": 8},
        "provenance": BLOCK["provenance"],
    }


def test_deciding_twice_gives_the_same_status_and_nothing_to_write() -> None:
    nodes = {"n1": on_node()}
    first = status(policy(), nodes, now="T1")
    second = status(policy(status=first), nodes, now="T2")

    assert second == first
    assert same(first, second)


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    first = status(policy(), {}, now="T1")
    second = status(policy(status=first), {"n1": on_node()}, now="T2")
    third = status(policy(status=second), {"n1": on_node(applied="")}, now="T3")
    times = [
        {item["type"]: item["lastTransitionTime"] for item in made["conditions"]}
        for made in (first, second, third)
    ]

    assert times[1] == {"Accepted": "T1", "Programmed": "T1", "Ready": "T1"}
    assert times[2] == {"Accepted": "T1", "Programmed": "T3", "Ready": "T3"}


def test_the_order_in_which_the_server_keeps_lists_is_no_difference() -> None:
    made = status(policy(), {"n1": on_node()})
    shuffled = {**made, "conditions": list(reversed(made["conditions"]))}

    assert same(shuffled, made)


def test_counters_alone_are_a_difference_that_can_wait() -> None:
    before = status(policy(), {"n1": on_node(applied="")})
    after = status(policy(), {"n1": on_node(applied=""), "n2": on_node()})

    assert not same(before, after)
    assert without_counters(before) == without_counters(after)


@pytest.mark.parametrize("generation", [1, 7])
def test_every_condition_and_the_status_name_the_generation_they_are_about(generation: int) -> None:
    made = status(policy(generation=generation), {})

    assert made["observedGeneration"] == generation
    assert {item["observedGeneration"] for item in made["conditions"]} == {generation}


def test_a_message_never_passes_the_bound_of_the_api() -> None:
    share = Share(lost_to=frozenset(f"team-a/{'x' * 200}{number}" for number in range(9)))
    made = status(policy(), {"n1": on_node(share)})

    assert max(len(item["message"]) for item in made["conditions"]) <= 300
