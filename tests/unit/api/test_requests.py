"""What a request may ask for: reports B11 to B19, and their neighbours."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.builders import (
    CAPPED,
    DISK_LOCAL,
    NODE,
    cluster,
    namespaced,
    pod,
    policies,
)

from kvoffload_api import resolution
from kvoffload_api.resolution import EVERY_TIER, Effective, tighten

NO_POLICY = resolution.compile(policies(), pod(), NODE)
CAPS = ["max_load_tokens", "max_offload_tokens"]


def cap(effective: Effective, name: str) -> int | None:
    return effective.load.max_tokens if name == "max_load_tokens" else effective.store.max_tokens


def names(effective: Effective) -> list[str] | None:
    if effective.load.tiers is None:
        return None
    return [f"{tier.medium}/{tier.locality}" for tier in effective.load.tiers]


@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize("policy", [NO_POLICY, CAPPED], ids=["without a policy", "with a policy"])
@pytest.mark.parametrize(
    "value",
    [
        "0",  # B11
        -1,  # B12
        1.0,
        True,
        [5],
        "1k",
        False,
        "8",
        8.5,
        0.0,
        float("nan"),
        float("inf"),
        {},
        [],
        "",
        b"8",
        pytest.param(-(10**5000), id="a negative one of 5,000 digits"),
        pytest.param("9" * 100_000, id="a text of 100,000 digits"),
    ],
)
def test_a_malformed_cap_is_as_if_absent_and_told(policy: Effective, name: str, value: Any) -> None:
    found = tighten(policy, {name: value})

    assert found.effective == policy
    assert [item.field for item in found.invalid] == [name]
    assert "must be an integer of at least 0" in found.invalid[0].reason


@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize("value", [0, 1, 16, 4095])
def test_a_lower_cap_applies_and_the_request_is_named(name: str, value: int) -> None:
    found = tighten(CAPPED, {name: value})
    field = "load.maxTokens" if name == "max_load_tokens" else "store.maxTokens"

    assert cap(found.effective, name) == value
    assert found.effective.source_of(field) == "request"
    assert found.effective.field_source(field).clamped_source == "KVOffloadPolicy/team-a/chat"
    assert found.invalid == ()


@pytest.mark.parametrize("name", CAPS)
@pytest.mark.parametrize(
    "value", [8192, 8193, 2**31, 2**63, 2**70, pytest.param(10**5000, id="5,000 digits")]
)  # B13
def test_a_higher_cap_changes_nothing_and_is_valid(name: str, value: int) -> None:
    found = tighten(CAPPED, {name: value})

    assert found.effective == CAPPED
    assert found.invalid == ()


@pytest.mark.parametrize("value", [2**31 - 1, 2**70, pytest.param(10**5000, id="5,000 digits")])
def test_a_huge_cap_without_a_policy_is_no_cap_and_overflows_nothing(value: int) -> None:
    assert tighten(NO_POLICY, {"max_load_tokens": value}).effective == NO_POLICY


@pytest.mark.parametrize("request_", [None, {}, {"max_load_tokens": None, "kv_load_tiers": None}])
def test_what_is_absent_or_null_asks_for_nothing(request_: Any) -> None:
    found = tighten(CAPPED, request_)

    assert found.effective is CAPPED
    assert found.invalid == ()


def test_fields_of_other_connectors_are_not_ours_to_judge() -> None:
    found = tighten(CAPPED, {"do_remote_prefill": True, "remote_engine_id": 5})

    assert found.effective is CAPPED
    assert found.invalid == ()


@pytest.mark.parametrize("request_", [[], "max_load_tokens=0", 5, True, [{"max_load_tokens": 0}]])
def test_parameters_that_are_no_object_are_as_if_absent_and_told(request_: Any) -> None:
    found = tighten(CAPPED, request_)

    assert found.effective is CAPPED
    assert [item.field for item in found.invalid] == ["kv_transfer_params"]


@pytest.mark.parametrize(
    "value",
    [
        "CPU",  # B16
        {},
        ["CPU"],
        5,
        True,
        [None],
        [[]],
        [{"medium": "gpu"}],
        [{"medium": 5}],
        [{"medium": ["cpu"]}],
        [{"locality": "far"}],
        [{"medium": "cpu", "locality": ""}],
    ],
)
@pytest.mark.parametrize("policy", [NO_POLICY, CAPPED], ids=["without a policy", "with a policy"])
def test_malformed_tiers_are_as_if_absent_and_told(policy: Effective, value: Any) -> None:
    found = tighten(policy, {"kv_load_tiers": value})

    assert found.effective == policy
    assert [item.field for item in found.invalid] == ["kv_load_tiers"]


@pytest.mark.parametrize("value", [[{"Medium": "CPU"}], [{"tier": "disk"}]])  # B18
def test_an_unknown_key_restricts_nothing_and_is_told(value: Any) -> None:
    found = tighten(CAPPED, {"kv_load_tiers": value})

    assert found.effective == CAPPED
    assert "unknown key" in found.invalid[0].reason


def test_a_matcher_without_keys_matches_everything() -> None:
    found = tighten(CAPPED, {"kv_load_tiers": [{}]})

    assert found.effective == CAPPED
    assert found.invalid == ()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], []),
        ([{"medium": "storage"}], ["Storage/Local"]),
        ([{"medium": "STORAGE", "locality": "Local"}], ["Storage/Local"]),
        ([{"medium": "storage", "locality": "remote"}], []),  # never more than the policy's
        ([{"medium": "cpu"}], ["CPU/Local"]),
        ([{"locality": "local"}], ["CPU/Local", "Storage/Local"]),
        ([{"medium": None, "locality": "local"}], ["CPU/Local", "Storage/Local"]),
        ([{"medium": "cpu"}, {"medium": "storage"}], ["CPU/Local", "Storage/Local"]),
    ],
)
def test_valid_tiers_narrow_the_policys(value: Any, expected: list[str]) -> None:
    found = tighten(CAPPED, {"kv_load_tiers": value})

    assert names(found.effective) == expected
    assert found.invalid == ()


def test_without_a_policy_tiers_narrow_all_there_can_be() -> None:
    found = tighten(NO_POLICY, {"kv_load_tiers": [{"medium": "storage"}]})

    assert names(found.effective) == ["Storage/Local", "Storage/Remote"]
    assert tighten(NO_POLICY, {"kv_load_tiers": [{}]}).effective.load.tiers is None
    assert len(EVERY_TIER) == 4


def test_a_malformed_item_beside_a_valid_one_is_skipped_and_told() -> None:
    found = tighten(CAPPED, {"kv_load_tiers": ["CPU", {"medium": "storage"}]})

    assert names(found.effective) == ["Storage/Local"]
    assert [item.field for item in found.invalid] == ["kv_load_tiers"]


def test_a_policy_lets_no_other_locality_through() -> None:  # B19
    policy = resolution.compile(
        policies(cluster(limits={"load": {"tiers": [DISK_LOCAL]}})), pod(), NODE
    )

    assert names(policy) == ["Storage/Local"]
    assert names(tighten(policy, {"kv_load_tiers": [{"medium": "storage"}]}).effective) == [
        "Storage/Local"
    ]


def test_a_policy_may_ignore_requests_but_faults_are_told() -> None:
    policy = resolution.compile(
        policies(namespaced(requestOverride="Ignore", load={"maxTokens": 8192})), pod(), NODE
    )

    found = tighten(policy, {"max_load_tokens": 5, "max_offload_tokens": "x", "kv_load_tiers": []})

    assert found.effective is policy
    assert [item.field for item in found.invalid] == ["max_offload_tokens"]


def test_a_request_below_the_policys_minimum_loads_nothing() -> None:
    policy = resolution.compile(policies(namespaced(load={"minTokens": 256})), pod(), NODE)

    found = tighten(policy, {"max_load_tokens": 100}).effective

    assert found.load.min_tokens == 256
    assert found.loads_nothing


def test_a_list_of_a_million_matchers_costs_no_more_than_a_short_one() -> None:
    found = tighten(CAPPED, {"kv_load_tiers": [{"medium": "storage"}] * 1_000_000})

    assert names(found.effective) == ["Storage/Local"]
    assert "at most 64" in found.invalid[0].reason
