"""Entries of a KVOffloadNode: an agent enforces exactly what the operator compiled."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from pydantic import ValidationError
from tests.unit.api.builders import (
    NODE,
    cluster,
    namespaced,
    namespaced_policies,
    pod,
    policies,
    policy_sets,
)

from kvoffload_api import resolution
from kvoffload_api.models import KVOffloadNode
from kvoffload_api.resolution import (
    FIELDS,
    NOTHING,
    Effective,
    NamespacedPolicy,
    PolicySet,
    text_of,
    tighten,
)


def through_the_api_server(effective: Effective) -> Effective:
    """Return what an agent reads of the node object, as JSON text on the way."""
    entry = effective.to_entry().document()
    document = {
        "apiVersion": "kvoffload.io/v1alpha1",
        "kind": "KVOffloadNode",
        "metadata": {"name": "n1", "resourceVersion": "7", "managedFields": [{}]},
        "spec": {
            "hash": "0" * 16,
            "entries": [entry],
            "pods": [
                {"uid": "u1", "namespace": "team-a", "name": "p", "entry": entry["hash"]},
            ],
        },
    }
    node = KVOffloadNode.read(json.loads(json.dumps(document)))
    assert node.spec is not None
    assert node.spec.entries is not None
    assert node.spec.pods is not None
    assert node.spec.pods[0].entry == node.spec.entries[0].hash
    return Effective.from_entry(node.spec.entries[0])


@given(policy_sets())
def test_an_agent_reads_what_the_operator_compiled(policies_: PolicySet) -> None:
    found = resolution.compile(policies_, pod(), NODE)

    assert through_the_api_server(found) == found


@given(policy_sets())
def test_the_operator_writes_only_what_the_schema_of_a_user_would_take(
    policies_: PolicySet,
) -> None:
    entry = resolution.compile(policies_, pod(), NODE).to_entry()

    assert type(entry).parse(entry.document()) == entry
    assert re.fullmatch("[0-9a-f]{16}", entry.hash)


@given(policy_sets())
def test_pods_that_get_the_same_share_an_entry(policies_: PolicySet) -> None:
    one = resolution.compile(policies_, pod("u1"), NODE)
    other = resolution.compile(policies_, pod("u2"), NODE)

    assert one.to_entry() == other.to_entry()


@given(namespaced_policies("p0").filter(lambda policy: policy.namespace == "team-a"))
def test_a_field_that_a_later_version_adds_is_ignored(policy: NamespacedPolicy) -> None:
    found = resolution.compile(policies(policy), pod(), NODE)
    document = found.to_entry().document() | {"remotePool": {"capacity": "1Ti"}}
    document["load"] |= {"later": 1}

    assert Effective.from_entry(found.to_entry().read(document)) == found


def test_an_entry_without_provenance_is_enforced_alike() -> None:
    found = resolution.compile(policies(namespaced(load={"maxTokens": 8})), pod(), NODE)
    document = found.to_entry().document()
    del document["provenance"]

    read = Effective.from_entry(found.to_entry().read(document))

    assert read.values() == found.values()
    assert {read.source_of(rule.path) for rule in FIELDS} == {"built-in"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("load.maxTokens", -1),
        ("load.maxTokens", "8"),
        ("load.maxTokens", True),
        ("load.maxTokens", 2**31),
        ("load.tiers", [{"medium": "GPU", "locality": "Local"}]),
        ("load.tiers", "CPU"),
        ("store.scope", "Everything"),
        ("hostMemory.capacity", "0"),
        ("hostMemory.capacity", 64),
    ],
)
def test_a_broken_entry_is_refused_and_not_read_as_no_cap(path: str, value: object) -> None:
    found = resolution.compile(policies(namespaced(load={"maxTokens": 8})), pod(), NODE)
    document = found.to_entry().document()
    block, name = path.split(".")
    document.setdefault(block, {})[name] = value

    with pytest.raises(ValidationError):
        found.to_entry().read(document)


def test_caps_of_zero_and_empty_tier_lists_survive() -> None:
    found = resolution.compile(
        policies(
            namespaced(load={"maxTokens": 0, "tiers": []}, store={"maxTokens": 0, "tiers": []})
        ),
        pod(),
        NODE,
    )

    read = through_the_api_server(found)

    assert (read.load.max_tokens, read.load.tiers) == (0, ())
    assert (read.store.max_tokens, read.store.tiers) == (0, ())
    assert read.loads_nothing
    assert read.stores_nothing


def test_a_variant_in_status_has_the_hash_of_the_entry() -> None:
    found = resolution.compile(
        policies(namespaced(load={"maxTokens": 9}), cluster(limits={"load": {"maxTokens": 8}})),
        pod(),
        NODE,
    )

    variant = found.to_variant(nodes=3)

    assert variant.hash == found.to_entry().hash == found.hash
    assert variant.nodes == 3
    assert variant.load is not None
    assert variant.load.max_tokens == 8


def test_no_entry_is_nothing_and_is_never_written() -> None:
    assert NOTHING.loads_nothing
    assert NOTHING.stores_nothing
    assert tighten(NOTHING, {"max_load_tokens": 5}).effective == NOTHING
    with pytest.raises(ValidationError):
        NOTHING.to_entry()


def test_nothing_has_a_text_and_a_hash_of_its_own() -> None:
    texts = {rule.path: text_of(rule, NOTHING.value(rule.path)) for rule in FIELDS}

    assert texts["hostMemory.capacity"] == "0"
    assert texts["load.maxTokens"] == "0"
    assert texts["load.tiers"] == "host-memory-only"
    assert texts["localDisk.capacity"] == "none"
    assert NOTHING.hash != resolution.compile(policies(), pod(), NODE).hash
