"""Which policy wins which pods, and what the others are told."""

from __future__ import annotations

from tests.unit.api.builders import NODE, cluster, namespaced, pod, policies

from kvoffload_api import resolution
from kvoffload_api.names import PolicyKey
from kvoffload_api.reasons import Reason
from kvoffload_api.resolution import PolicySet, Standing, conflicts, standings

A = PolicyKey("KVOffloadPolicy/team-a/a")
B = PolicyKey("KVOffloadPolicy/team-a/b")
VLLM = {"matchLabels": {"app": "vllm"}}
OTHER = {"matchLabels": {"app": "other"}}


def fares(all_policies: PolicySet, *uids: str) -> dict[PolicyKey, Standing]:
    pods = [pod(uid) for uid in uids]
    effective = {item.uid: resolution.compile(all_policies, item, NODE) for item in pods}
    return standings(all_policies, pods, effective=effective)


def test_a_policy_that_wins_all_its_pods_is_programmed() -> None:
    found = fares(policies(namespaced("a")), "u1", "u2")[A]

    assert (found.accepted, found.programmed) == (Reason.ACCEPTED, Reason.PROGRAMMED)
    assert found.pods == ("u1", "u2")
    assert found.lost == {}


def test_a_policy_without_pods_is_not_at_fault() -> None:
    found = fares(policies(namespaced("a", podSelector=OTHER)), "u1")[A]

    assert found.programmed is Reason.NO_MATCHING_PODS


def test_the_younger_of_two_is_overridden_and_told_by_whom() -> None:
    found = fares(policies(namespaced("a", age=1), namespaced("b", podSelector=VLLM)), "u1")

    assert found[A].programmed is Reason.PROGRAMMED
    assert found[B].accepted is Reason.ACCEPTED
    assert found[B].programmed is Reason.OVERRIDDEN
    assert found[B].programmed_message == f"all selected pods have {A}"
    assert found[B].lost == {"u1": A}


def test_a_policy_that_wins_some_of_its_pods_is_partially_programmed() -> None:
    all_policies = policies(namespaced("a", priority=1, podSelector=VLLM), namespaced("b"))
    pods = [pod("u1", app="vllm"), pod("u2", app="other")]

    found = standings(all_policies, pods)[B]

    assert found.programmed is Reason.PARTIALLY_PROGRAMMED
    assert found.pods == ("u2",)
    assert found.lost == {"u1": A}


def test_an_identical_selector_is_a_conflict_of_the_younger() -> None:
    same = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["x", "vllm"]}]}
    swapped = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["vllm", "x"]}]}

    found = fares(
        policies(namespaced("b", podSelector=swapped), namespaced("a", age=1, podSelector=same)),
        "u1",
    )

    assert found[A].accepted is Reason.ACCEPTED
    assert found[B].accepted is Reason.CONFLICTED
    assert A in found[B].accepted_message


def test_no_selector_and_an_empty_one_are_identical() -> None:
    assert conflicts(policies(namespaced("a"), namespaced("b", podSelector={}))) == {B: A}


def test_no_conflict_with_another_priority_namespace_selector_or_a_dry_run() -> None:
    others = [
        namespaced("b", priority=1),
        namespaced("b", namespace="team-b"),
        namespaced("b", podSelector=VLLM),
        namespaced("b", mode="DryRun"),
    ]

    for other in others:
        assert conflicts(policies(namespaced("a", age=1), other)) == {}


def test_a_dry_run_takes_no_pod_and_shows_those_it_selects() -> None:
    found = fares(policies(namespaced("a"), namespaced("b", mode="DryRun", priority=9)), "u1")

    assert found[A].pods == ("u1",)
    assert found[B].pods == ("u1",)
    assert found[B].programmed is Reason.PROGRAMMED


def test_a_policy_whose_value_is_cut_is_told_by_which_limit() -> None:
    found = fares(
        policies(
            namespaced("a", load={"maxTokens": 9}), cluster(limits={"load": {"maxTokens": 8}})
        ),
        "u1",
    )[A]

    assert found.accepted is Reason.CLAMPED
    assert found.accepted_message == (
        "load.maxTokens 9 cut by ClusterKVOffloadPolicy/default#limits"
    )


def test_a_limit_on_what_the_policy_did_not_set_is_not_told_to_it() -> None:
    found = fares(policies(namespaced("a"), cluster(limits={"load": {"maxTokens": 8}})), "u1")[A]

    assert found.accepted is Reason.ACCEPTED


def test_messages_are_short_however_many_policies_there_are() -> None:
    long = [namespaced(f"{'x' * 240}{index}", priority=9, age=index) for index in range(9)]
    found = fares(policies(*long, namespaced("a", podSelector=VLLM)), "u1")[A]

    assert len(found.programmed_message) <= 300
