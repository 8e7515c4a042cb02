"""Messages name the value that was wrong; the node's budget keeps each of its fields."""

from __future__ import annotations

import pytest
from tests.unit.api.builders import NODE, cluster, namespaced, pod, policies

from kvoffload_api import resolution
from kvoffload_api.resolution import essence, node_budget, tighten

NO_POLICY = resolution.compile(policies(), pod(), NODE)


@pytest.mark.parametrize(
    ("tiers", "shown"),
    [
        ("everything", "'everything'"),
        (["disk-1"], "'disk-1'"),
        ([{"medium": "gpu"}], "'gpu'"),
        ([{"locality": "far"}], "'far'"),
        ([{"Medium": "cpu"}], "'Medium'"),
        ([None], "None"),
        ([{"medium": 1.5}], "1.5"),
    ],
)
def test_a_malformed_value_is_in_the_message(tiers: object, shown: str) -> None:
    [fault] = tighten(NO_POLICY, {"kv_load_tiers": tiers}).invalid
    assert shown in fault.reason


@pytest.mark.parametrize(("count", "told"), [(64, False), (65, True)])
def test_a_list_of_matchers_is_read_up_to_its_bound(count: int, *, told: bool) -> None:
    found = tighten(NO_POLICY, {"kv_load_tiers": [{"medium": "cpu"}] * count})
    assert bool(found.invalid) is told


def test_what_is_kept_of_tiers_is_written_as_requests_write_it() -> None:
    kept = essence({"kv_load_tiers": [{"medium": "STORAGE", "locality": "Local"}]})
    assert kept["kv_load_tiers"] == [{"medium": "storage", "locality": "local"}]


def test_every_field_of_a_nodes_budget_is_planned() -> None:
    given = {"hostMemory": "64Gi", "localDisk": "1Ti", "reservedMemory": "8Gi"}
    model = node_budget(policies(cluster(nodeBudget=given)), NODE).to_model()
    assert model is not None
    assert model.model_dump(by_alias=True, mode="json") == given
    assert node_budget(policies(namespaced()), NODE).to_model() is None
