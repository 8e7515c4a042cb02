"""Judges a value as the API server does: structural schema, then CEL rules, unknown fields refused.

Only what the generated CRDs use is understood; anything else is an error, so that no keyword is
silently not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import cache
from typing import Any

import cel

Schema = Mapping[str, Any]

_UNDERSTOOD = {
    "description",
    "type",
    "format",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
}
_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "array": list,
    "object": dict,
}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def faults(schema: Schema, value: Any) -> list[str]:
    """Return why the API server refuses a value; empty if it takes it."""
    value = defaulted(schema, value)
    found = list(_structure(schema, value, "$"))
    # Rules need values of the right type: the server does not run them on others either.
    return found or list(_rules(schema, value, "$"))


def defaulted(schema: Schema, value: Any) -> Any:
    """Return a value with defaults filled in, and nulls that have a default replaced."""
    if isinstance(value, dict) and "properties" in schema:
        filled = dict(value)
        for name, child in schema["properties"].items():
            if "default" in child and filled.get(name) is None:
                filled[name] = child["default"]
            if name in filled:
                filled[name] = defaulted(child, filled[name])
        return filled
    if isinstance(value, list) and "items" in schema:
        return [defaulted(schema["items"], item) for item in value]
    return value


def _structure(schema: Schema, value: Any, path: str) -> Iterator[str]:
    assert set(schema) <= _UNDERSTOOD, set(schema) - _UNDERSTOOD
    if not _has_type(schema, value):
        yield f"{path}: wrong type"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: not one of {schema['enum']}"
    match value:
        case str():
            yield from _string(schema, value, path)
        case int():
            if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
                yield f"{path}: out of bounds"
        case list():
            yield from _list(schema, value, path)
        case dict():
            yield from _object(schema, value, path)


def _has_type(schema: Schema, value: Any) -> bool:
    if isinstance(value, bool):
        return schema.get("type") == "boolean"
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, int | str)
    return isinstance(value, _TYPES[schema["type"]])


def _list(schema: Schema, value: list[Any], path: str) -> Iterator[str]:
    if len(value) > schema["maxItems"]:
        yield f"{path}: too many items"
    if keys := schema.get("x-kubernetes-list-map-keys"):
        names = [tuple(item.get(key) for key in keys) for item in value if isinstance(item, dict)]
        if any(name in names[:index] for index, name in enumerate(names)):
            yield f"{path}: duplicate"
    for index, item in enumerate(value):
        yield from _structure(schema["items"], item, f"{path}[{index}]")


def _string(schema: Schema, value: str, path: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: length"
    # \Z: Python's $ would also match before a line's end, Go's does not.
    if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
        yield f"{path}: pattern"
    if schema.get("format") == "date-time" and not _RFC3339.fullmatch(value):
        yield f"{path}: no time"


def _object(schema: Schema, value: Mapping[str, Any], path: str) -> Iterator[str]:
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
        yield f"{path}: number of properties"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: required"
    for name, child in value.items():
        known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if known:
            yield from _structure(known, child, f"{path}.{name}")
        elif path != "$.metadata":
            yield f"{path}.{name}: unknown"


def _rules(schema: Schema, value: Any, path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if not holds(rule["rule"], value):
            yield f"{path}: {rule['message']}"
    if isinstance(value, dict):
        for name, child in value.items():
            known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if known:
                yield from _rules(known, child, f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rules(schema["items"], item, f"{path}[{index}]")


def holds(rule: str, value: Any) -> bool:
    """Tell whether a rule holds; one that cannot be evaluated does not."""
    return evaluate(rule, value) is True


def evaluate(rule: str, value: Any) -> bool | None:
    """Evaluate a CEL rule over ``self``; None if it reads what is not there or is no quantity."""
    context = cel.Context()
    context.add_function("quantity", _quantity)
    context.add_function("compareTo", lambda left, right: (left > right) - (left < right))
    context.add_variable("self", value)
    try:
        result = _program(rule).execute(context)
    except (KeyError, ValueError):
        return None
    assert isinstance(result, bool)
    return result


@cache
def _program(rule: str) -> Any:
    return cel.compile(rule)


_SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


def _quantity(text: str) -> int:
    """Read a quantity as Kubernetes does, as far as whole numbers go; apart from our parser."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", text)
    if match is None or (match[2] and match[2] not in _SUFFIXES):
        raise ValueError(text)
    return int(Decimal(match[1]) * _SUFFIXES.get(match[2], 1))
