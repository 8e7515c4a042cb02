"""Selectors select what Kubernetes' own would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvoffload_api.models import Selector

KEYS = ["app", "size", "kvoffload.io/engine"]
VALUES = ["", "a", "b"]
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
expressions = st.one_of(
    st.builds(
        lambda key, operator, values: {"key": key, "operator": operator, "values": values},
        st.sampled_from(KEYS),
        st.sampled_from(["In", "NotIn"]),
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=3),
    ),
    st.builds(
        lambda key, operator: {"key": key, "operator": operator},
        st.sampled_from(KEYS),
        st.sampled_from(["Exists", "DoesNotExist"]),
    ),
)
selectors = st.fixed_dictionaries(
    {}, optional={"matchLabels": labels, "matchExpressions": st.lists(expressions, max_size=3)}
)


def oracle(selector: dict[str, Any], given_labels: dict[str, str]) -> bool:
    """The definition of the API reference, word by word."""
    for key, value in selector.get("matchLabels", {}).items():
        if key not in given_labels or given_labels[key] != value:
            return False
    for item in selector.get("matchExpressions", []):
        present = item["key"] in given_labels
        among = present and given_labels[item["key"]] in item.get("values", [])
        verdict = {
            "In": among,
            "NotIn": not among,
            "Exists": present,
            "DoesNotExist": not present,
        }
        if not verdict[item["operator"]]:
            return False
    return True


@given(selectors, labels)
def test_a_selector_selects_by_its_definition(
    selector: dict[str, Any], given_labels: dict[str, str]
) -> None:
    assert Selector.parse(selector).matches(given_labels) == oracle(selector, given_labels)


@given(selectors, labels)
def test_only_the_labels_a_selector_names_matter(
    selector: dict[str, Any], given_labels: dict[str, str]
) -> None:
    model = Selector.parse(selector)
    named = {key: value for key, value in given_labels.items() if key in model.keys()}  # noqa: SIM118 - a method of ours

    assert model.matches(named) == model.matches(given_labels)


def test_an_empty_selector_selects_everything() -> None:
    assert Selector().matches({})
    assert Selector.parse({"matchLabels": {}, "matchExpressions": []}).matches({"a": "b"})


@pytest.mark.parametrize(
    "item",
    [
        {"key": "a", "operator": "In"},
        {"key": "a", "operator": "NotIn", "values": []},
        {"key": "a", "operator": "Exists", "values": ["b"]},
        {"key": "a", "operator": "Is", "values": ["b"]},
        {"key": "", "operator": "Exists"},
        {"key": "a b", "operator": "Exists"},
        {"operator": "Exists"},
    ],
)
def test_an_expression_without_a_meaning_is_refused(item: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Selector.parse({"matchExpressions": [item]})
