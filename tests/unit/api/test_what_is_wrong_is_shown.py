"""A malformed field is told with what was given, in few characters; the others keep their values.

The texts go to logs and Events, so a client must neither fill them nor be left guessing.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.api.builders import CAPPED

from kvoffload_api.resolution import tighten

SHOWN_CHARACTERS = 60
LARGEST_SHOWN = 2**59 - 1


def reasons(request: Any) -> list[tuple[str, str]]:
    return [(fault.field, fault.reason) for fault in tighten(CAPPED, request).invalid]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (True, "True"),
        (-1.5, "-1.5"),
        (-8, "-8"),
        (-LARGEST_SHOWN, f"-{LARGEST_SHOWN}"),
        (-LARGEST_SHOWN - 1, "an integer of 60 bits"),
        (-(10**5000), "an integer of 16610 bits"),
        ("8", "'8'"),
        ("9" * SHOWN_CHARACTERS, "'" + "9" * SHOWN_CHARACTERS + "'"),
        ("9" * (SHOWN_CHARACTERS + 1), "'" + "9" * SHOWN_CHARACTERS + "…'"),
        ([5], "a value of type list"),
        (b"8", "a value of type bytes"),
    ],
    ids=lambda value: repr(value)[:24] if value != -(10**5000) else "5,000 digits",
)
def test_a_malformed_cap_is_shown_as_given_or_by_its_size_or_type(given: Any, shown: str) -> None:
    assert reasons({"max_load_tokens": given}) == [
        ("max_load_tokens", f"must be an integer of at least 0, not {shown}")
    ]


@pytest.mark.parametrize(
    ("request_", "shown"), [(7, "7"), ("cap", "'cap'"), ([], "a value of type list")]
)
def test_parameters_that_are_no_object_are_told_as_a_whole(request_: Any, shown: str) -> None:
    assert reasons(request_) == [("kv_transfer_params", f"must be an object, not {shown}")]
    assert tighten(CAPPED, request_).effective == CAPPED


def test_a_medium_that_is_no_text_is_none_of_the_media() -> None:
    assert reasons({"kv_load_tiers": [{"medium": 7}]}) == [
        ("kv_load_tiers", "`medium` must be cpu or storage, not 7")
    ]


@pytest.mark.parametrize("name", ["max_load_tokens", "max_offload_tokens"])
def test_a_lower_cap_leaves_the_tiers_of_the_policy_as_they_are(name: str) -> None:
    tightened = tighten(CAPPED, {name: 16}).effective
    assert tightened.load.tiers == CAPPED.load.tiers
    assert len(tightened.load.tiers or ()) == 2


def test_fewer_tiers_leave_the_caps_of_the_policy_as_they_are() -> None:
    tightened = tighten(CAPPED, {"kv_load_tiers": [{"medium": "storage"}]}).effective
    assert [tier.medium for tier in tightened.load.tiers or ()] == ["Storage"]
    assert (tightened.load.max_tokens, tightened.store.max_tokens) == (8192, 4096)
