"""Models, schema and CEL rules take and refuse the same objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.unit.api.cases import MODELS, REFUSED, TAKEN, Case
from tests.unit.api.structural import Schema, defaulted, evaluate, faults

from kvoffload_api.crd.documents import KINDS, crd

SCHEMAS: dict[str, Schema] = {
    kind.kind: crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind in KINDS
}
TEXTS = ["", "a", "app", "x" * 64, "x" * 400, "a/b", "-", "0123456789abcdef", "Ready", "64Gi"]
TEXTS += ["30GB", "64", "0", "1Mi", "1024Ti", "1025Ti", "5%", "0%", "ä", "a\n"]
TEXTS += ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+01:00", "yesterday"]


def model_takes(kind: str, document: dict[str, Any]) -> bool:
    try:
        MODELS[kind].parse(document)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("case", TAKEN, ids=lambda case: case.name)
def test_taken(case: Case) -> None:
    document = case.document()

    assert faults(SCHEMAS[case.kind], document) == []
    model = MODELS[case.kind].parse(document)
    assert MODELS[case.kind].parse(model.document()) == model


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused(case: Case) -> None:
    document = case.document()

    assert faults(SCHEMAS[case.kind], document)
    assert not model_takes(case.kind, document)


def rules(schema: Schema, path: str = "") -> Iterator[tuple[str, str]]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["rule"]
    for name, child in schema.get("properties", {}).items():
        yield from rules(child, f"{path}.{name}")
    if "items" in schema:
        yield from rules(schema["items"], f"{path}[]")


def at(value: Any, path: str) -> Iterator[Any]:
    """Return the values at a path such as ``.spec.pods[].uid``."""
    head, _, rest = path.lstrip(".").partition(".")
    if not head:
        yield value
    elif head.endswith("[]"):
        for item in value.get(head[:-2], ()):
            yield from at(item, rest)
    elif head in value:
        yield from at(value[head], rest)


def judged(cases: list[Case], kind: str, path: str, rule: str) -> list[bool | None]:
    return [
        evaluate(rule, value)
        for case in cases
        if case.kind == kind
        for value in at(defaulted(SCHEMAS[kind], case.document()), path)
        if isinstance(value, str | dict)
    ]


ALL_RULES = sorted(
    {
        (kind, path, rule)
        for kind, schema in SCHEMAS.items()
        for path, rule in rules(schema)
        if not path.startswith(".status")
    }
)


@pytest.mark.parametrize(("kind", "path", "rule"), ALL_RULES)
def test_every_rule_holds_for_all_that_is_taken(kind: str, path: str, rule: str) -> None:
    assert set(judged(TAKEN, kind, path, rule)) <= {True}


@pytest.mark.parametrize("rule", sorted({rule for _, _, rule in ALL_RULES}))
def test_every_rule_is_broken_by_something_that_is_refused(rule: str) -> None:
    verdicts = [
        verdict
        for kind, path, same in ALL_RULES
        if same == rule
        for verdict in judged(REFUSED, kind, path, rule)
    ]

    assert False in verdicts


def test_rules_use_no_optional_chaining() -> None:
    assert ALL_RULES
    assert not [rule for _, _, rule in ALL_RULES if ".?" in rule]


def documents(schema: Schema, *, spoilt: bool) -> st.SearchStrategy[Any]:
    """Return values of a schema: all keywords kept, or (``spoilt``) some just not."""
    right = _right(schema, spoilt=spoilt)
    if not spoilt:
        return right
    # So rare that a large object is not always wrong in many places.
    return st.one_of(*[right] * 30, st.sampled_from([None, True, -1, 1.5, "x", [], {}]))


def _right(schema: Schema, *, spoilt: bool) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "array":
            return st.lists(documents(schema["items"], spoilt=spoilt), max_size=3)
        case "object":
            return _objects(schema, spoilt=spoilt)
        case "boolean":
            return st.booleans()
    right, wrong = _scalars(schema)
    return st.sampled_from(right * 5 + wrong * spoilt)


def _scalars(schema: Schema) -> tuple[list[Any], list[Any]]:
    """Return values that a schema of a single value takes, and some that it may refuse."""
    if "enum" in schema:
        return schema["enum"], ["Bogus"]
    if schema.get("type") == "integer":
        low, high = schema["minimum"], schema["maximum"]
        return [low, low + 1, high], [low - 1, high + 1]
    if schema.get("type") == "string":
        return [text for text in TEXTS if not faults(schema, text)], TEXTS
    return [1, 5000, "5%", "100%"], [0, 5001, "101%", "5"]


def _objects(schema: Schema, *, spoilt: bool) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(st.sampled_from(["app", "a/b"]), st.sampled_from(["", "x"]))
    fields = {name: documents(child, spoilt=spoilt) for name, child in schema["properties"].items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional=fields)


@pytest.mark.parametrize("kind", sorted(MODELS))
@settings(max_examples=300)
@given(data=st.data())
def test_model_and_schema_agree_on_generated_objects(kind: str, data: st.DataObject) -> None:
    part = data.draw(st.sampled_from(["spec", "status"]))
    document: dict[str, Any] = {"metadata": {"name": "default", "namespace": "n"}}
    if "spec" in SCHEMAS[kind].get("required", ()):
        document["spec"] = {"nodeBudget": {"hostMemory": "1Gi"}} if kind.startswith("C") else {}
    schema = SCHEMAS[kind]["properties"][part]
    document[part] = data.draw(documents(schema, spoilt=data.draw(st.booleans())))

    found = faults(SCHEMAS[kind], document)

    assert model_takes(kind, document) == (not found), found
