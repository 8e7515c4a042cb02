"""What is done about one KVOffloadNode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_operator.facts import NodeFacts
from kvoffload_operator.plan import NodePlan
from kvoffload_operator.reconcile.diff import contains
from kvoffload_operator.reconcile.nodes import Apply, Delete, decide

NODE = NodeFacts(uid="n-uid", labels={}, deleting=False)
PLAN = NodePlan(spec={"hash": "a" * 16, "entries": [{"hash": "b" * 16}], "pods": []})


def live_after(action: Apply | Delete | None) -> dict[str, Any]:
    """Return what the server has after an apply, with what it adds by itself."""
    assert isinstance(action, Apply)
    live = copy.deepcopy(dict(action.body))
    live["metadata"] = {**live["metadata"], "uid": "k-uid", "creationTimestamp": "T"}
    live["spec"]["entries"][0]["requestOverride"] = "Tighten"
    return live


def test_a_planned_node_without_an_object_gets_one_that_the_node_owns() -> None:
    action = decide(name="n1", node=NODE, plan=PLAN, live=None)

    assert isinstance(action, Apply)
    assert action.body["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n-uid"}
    ]
    assert action.body["spec"] == PLAN.spec


def test_an_object_as_planned_is_left_alone_whatever_others_added() -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))
    live["metadata"]["labels"]["someone"] = "else"

    assert decide(name="n1", node=NODE, plan=PLAN, live=live) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda live: live["spec"].update(hash="c" * 16),
        lambda live: live["spec"]["entries"].clear(),
        lambda live: live["spec"]["pods"].append({"uid": "x"}),
        lambda live: live["metadata"].pop("ownerReferences"),
        lambda live: live["metadata"]["labels"].clear(),
    ],
)
def test_any_difference_in_what_is_ours_is_put_right(change: Any) -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))
    change(live)

    assert isinstance(decide(name="n1", node=NODE, plan=PLAN, live=live), Apply)


def test_a_node_made_again_under_its_name_owns_the_object_anew() -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))
    again = NodeFacts(uid="other-uid", labels={}, deleting=False)

    assert isinstance(decide(name="n1", node=again, plan=PLAN, live=live), Apply)


def test_a_node_no_longer_selected_loses_its_object_and_that_very_one() -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))

    assert decide(name="n1", node=NODE, plan=None, live=live) == Delete(uid="k-uid")


def test_an_object_that_we_did_not_make_is_never_deleted() -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))
    live["metadata"]["labels"] = {}

    assert decide(name="n1", node=NODE, plan=None, live=live) is None


def test_a_vanished_node_is_left_to_the_garbage_collector() -> None:
    live = live_after(decide(name="n1", node=NODE, plan=PLAN, live=None))

    assert decide(name="n1", node=None, plan=None, live=live) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(values)
def test_everything_contains_itself(value: Any) -> None:
    assert contains(value, copy.deepcopy(value))


@given(st.dictionaries(st.sampled_from("abc"), values, max_size=3), values)
def test_a_field_of_somebody_else_is_no_difference_and_a_missing_one_of_ours_is(
    ours: dict[str, Any], foreign: Any
) -> None:
    assert contains({**ours, "z": foreign}, ours)
    assert not contains(ours, {**ours, "z": foreign})


def test_true_is_not_one() -> None:
    assert not contains({"a": 1}, {"a": True})
    assert not contains({"a": 0}, {"a": False})
