"""Laws of how policies fare (``operator.md`` 1.6 and 1.7), for all policies and pods."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.api.builders import NODE, pod, policy_sets

from kvoffload_api import resolution
from kvoffload_api.models import Mode
from kvoffload_api.names import PodUID, PolicyKey
from kvoffload_api.reasons import Reason
from kvoffload_api.resolution import (
    Effective,
    PodView,
    PolicySet,
    Standing,
    clamps,
    conflicts,
    standings,
)

_pods = st.lists(
    st.tuples(
        st.sampled_from([f"u{index}" for index in range(6)]),
        st.sampled_from(["team-a", "team-b", "team-c"]),
        st.sampled_from(["vllm", "x", "other"]),
    ),
    max_size=6,
    unique_by=lambda item: item[0],
).map(lambda items: [pod(uid, namespace=namespace, app=app) for uid, namespace, app in items])


def compiled(policies: PolicySet, pods: list[PodView]) -> dict[PodUID, Effective]:
    return {item.uid: resolution.compile(policies, item, NODE) for item in pods}


def fares(policies: PolicySet, pods: list[PodView]) -> dict[PolicyKey, Standing]:
    return standings(policies, pods, effective=compiled(policies, pods))


@given(policy_sets(), _pods)
def test_a_pod_has_one_policy_or_none_and_it_is_the_one_it_is_compiled_from(
    policies: PolicySet, pods: list[PodView]
) -> None:
    found = fares(policies, pods)
    enforced = {item.key for item in policies.namespaced if item.spec.mode is not Mode.DRY_RUN}

    for uid, effective in compiled(policies, pods).items():
        source = PolicyKey(effective.source)
        owners = [key for key in enforced if uid in found[key].pods]
        assert owners == ([source] if source in enforced else [])
        for key in enforced:
            assert found[key].lost.get(uid, source) == source


@given(policy_sets(), _pods)
def test_the_reason_follows_from_the_pods(policies: PolicySet, pods: list[PodView]) -> None:
    expected = {
        (False, False): Reason.NO_MATCHING_PODS,
        (True, False): Reason.PROGRAMMED,
        (True, True): Reason.PARTIALLY_PROGRAMMED,
        (False, True): Reason.OVERRIDDEN,
    }

    for standing in fares(policies, pods).values():
        assert standing.programmed is expected[bool(standing.pods), bool(standing.lost)]
        assert bool(standing.programmed_message) == (standing.programmed is not Reason.PROGRAMMED)
        assert not set(standing.pods) & set(standing.lost)
        for winner in set(standing.lost.values()):
            assert winner in standing.programmed_message


@given(policy_sets(), _pods)
def test_a_policy_in_conflict_never_has_a_pod_that_its_rival_could_have(
    policies: PolicySet, pods: list[PodView]
) -> None:
    found = fares(policies, pods)
    by_key = {item.key: item for item in policies.namespaced}

    for key, rival in conflicts(policies).items():
        assert found[key].accepted is Reason.CONFLICTED
        assert rival in found[key].accepted_message
        assert found[key].pods == ()
        assert Mode.DRY_RUN not in {by_key[key].spec.mode, by_key[rival].spec.mode}
        assert by_key[rival].rank < by_key[key].rank
        assert by_key[rival].spec.priority == by_key[key].spec.priority
        assert rival not in conflicts(policies)


@given(policy_sets(), _pods)
def test_without_the_policies_in_conflict_every_pod_gets_the_same(
    policies: PolicySet, pods: list[PodView]
) -> None:
    in_conflict = conflicts(policies)
    rest = replace(
        policies,
        namespaced=tuple(item for item in policies.namespaced if item.key not in in_conflict),
    )

    assert compiled(rest, pods) == compiled(policies, pods)
    assert conflicts(rest) == {}


@given(policy_sets(), _pods, st.randoms())
def test_status_does_not_change_with_the_order_of_anything(
    policies: PolicySet, pods: list[PodView], shuffler: random.Random
) -> None:
    shuffled = PolicySet(
        namespaced=tuple(shuffler.sample(policies.namespaced, len(policies.namespaced))),
        cluster=tuple(shuffler.sample(policies.cluster, len(policies.cluster))),
    )
    found = fares(policies, pods)
    again = fares(shuffled, shuffler.sample(pods, len(pods)))

    assert again == found
    for key, standing in found.items():
        # Written as JSON: the order of names in it counts too.
        assert list(again[key].lost) == list(standing.lost)


@given(policy_sets(), _pods)
def test_messages_fit_a_condition(policies: PolicySet, pods: list[PodView]) -> None:
    for standing in fares(policies, pods).values():
        assert len(standing.accepted_message) <= 300
        assert len(standing.programmed_message) <= 300


@given(policy_sets(), _pods)
def test_clamped_is_told_exactly_to_those_whose_values_were_cut(
    policies: PolicySet, pods: list[PodView]
) -> None:
    effective = compiled(policies, pods)
    cut = {
        PolicyKey(source.clamped_source)
        for each in effective.values()
        for _, source in each.provenance
        if source.clamped_source
    }
    found = fares(policies, pods)

    for key, standing in found.items():
        assert bool(clamps(key, effective.values())) == (key in cut)
        if key not in conflicts(policies):
            assert standing.accepted is (Reason.CLAMPED if key in cut else Reason.ACCEPTED)
            assert bool(standing.accepted_message) == (key in cut)
