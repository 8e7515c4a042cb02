"""How models read, write and refuse."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from kvoffload_api.hashing import canonical_json, config_hash
from kvoffload_api.models import (
    ClusterKVOffloadPolicy,
    EngineStatus,
    KVOffloadNode,
    KVOffloadPolicy,
    KVOffloadPolicySpec,
    Load,
)

POLICY = {
    "apiVersion": "kvoffload.io/v1alpha1",
    "kind": "KVOffloadPolicy",
    "metadata": {
        "name": "chat",
        "namespace": "team-a",
        "creationTimestamp": "2026-01-31T12:00:00Z",
        "managedFields": [{"manager": "kubectl"}],
        "annotations": {"a": "b"},
    },
    "spec": {"load": {"maxTokens": 5}, "fromTheFuture": {"x": 1}},
    "status": {"observedGeneration": 3, "alsoNew": True},
}


def test_what_a_newer_version_wrote_is_read() -> None:
    policy = KVOffloadPolicy.read(POLICY)

    assert policy.key == "KVOffloadPolicy/team-a/chat"
    assert policy.metadata.creation_timestamp == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert policy.spec.load == Load(max_tokens=5)
    assert policy.status is not None
    assert policy.status.observed_generation == 3


def test_what_a_user_wrote_must_be_known() -> None:
    with pytest.raises(ValidationError, match="fromTheFuture"):
        KVOffloadPolicy.parse(POLICY)


def test_a_model_is_written_in_camel_case_without_absent_fields() -> None:
    spec = KVOffloadPolicySpec(load=Load(max_tokens=5))

    assert spec.document() == {
        "load": {"maxTokens": 5},
        "mode": "Enforce",
        "priority": 0,
        "requestOverride": "Tighten",
    }


def test_initials_stay_capital() -> None:
    engine = EngineStatus.parse(
        {"podUID": "u", "fingerprint": "f", "connectedSince": "2026-01-31T12:00:00Z"}
    )

    assert engine.document()["podUID"] == "u"


def test_a_users_null_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValidationError, match="`load` must not be null; leave the field out"):
        KVOffloadPolicySpec.parse({"load": None})


def test_a_null_of_a_defaulted_field_is_the_default() -> None:
    assert KVOffloadPolicySpec.parse({"mode": None}) == KVOffloadPolicySpec()


def test_models_cannot_be_changed() -> None:
    load = Load(max_tokens=5)

    with pytest.raises(ValidationError, match="frozen"):
        load.max_tokens = 6


@pytest.mark.parametrize("document", [None, [], "x", 5])
def test_what_is_no_object_is_refused_without_a_crash(document: object) -> None:
    for model in (KVOffloadPolicy, ClusterKVOffloadPolicy, KVOffloadNode):
        with pytest.raises(ValidationError):
            model.parse(document)  # type: ignore[arg-type]
        with pytest.raises(ValidationError):
            model.parse({"metadata": {"name": "x"}, "spec": document, "status": 5})


def test_a_kind_is_not_taken_for_another() -> None:
    with pytest.raises(ValidationError, match="ClusterKVOffloadPolicy"):
        ClusterKVOffloadPolicy.read(POLICY)


def test_a_hash_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": [1, "ä"]}) == '{"a":[1,"ä"],"b":1}'
    assert config_hash({"b": 1, "a": 2}) == config_hash({"a": 2, "b": 1})
    assert config_hash({"a": 1}) != config_hash({"a": "1"})
    # Pinned: agents of the next version must find what this one wrote unchanged.
    assert config_hash({"a": 1}) == "015abd7f5cc57a2d"
