"""From a model to the structural schema of a CRD.

Kubernetes takes a part of OpenAPI 3: no references, no unions, no ``additionalProperties`` beside
``properties``. The models use only what has a form there, and ``structural`` refuses the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvoffload_api.models.base import ApiModel

_KEPT: Final = (
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
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
)
# Without a meaning in a CRD, or said there in another way.
_DROPPED: Final = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "items",
        "properties",
        "propertyNames",
        "title",
    }
)

Schema = dict[str, Any]


class SchemaError(Exception):
    """A model uses something that a CRD cannot say: we must write the model differently."""


def structural(model: type[ApiModel]) -> Schema:
    """Return the structural schema of a model.

    Raises:
        SchemaError: The model uses something that a CRD cannot say.
    """
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, definitions=schema.get("$defs", {}), path=model.__name__)


def _convert(schema: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str) -> Schema:
    merged = _merge(schema, definitions=definitions, path=path)
    if unknown := set(merged) - set(_KEPT) - _DROPPED:
        raise SchemaError(f"{path}: a CRD has no {', '.join(sorted(unknown))}")
    result: Schema = {key: merged[key] for key in _KEPT if key in merged}
    if result.get("default", ...) is None:
        del result["default"]
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    if "properties" in merged:
        result["properties"] = {
            name: _convert(child, definitions=definitions, path=f"{path}.{name}")
            for name, child in merged["properties"].items()
        }
    elif isinstance(merged.get("additionalProperties"), Mapping):
        result["additionalProperties"] = _convert(
            merged["additionalProperties"], definitions=definitions, path=f"{path}.*"
        )
    if "items" in merged:
        result["items"] = _convert(merged["items"], definitions=definitions, path=f"{path}[]")
    return result


def _merge(schema: Mapping[str, Any], *, definitions: Mapping[str, Any], path: str) -> Schema:
    """Return a schema with its reference and its optional type resolved; its own words win."""
    inner: Mapping[str, Any] = {}
    if "$ref" in schema:
        inner = definitions[schema["$ref"].rpartition("/")[2]]
    elif "anyOf" in schema and not schema.get("x-kubernetes-int-or-string"):
        some = [item for item in schema["anyOf"] if item != {"type": "null"}]
        if len(some) != 1:
            raise SchemaError(f"{path}: a CRD cannot choose between types")
        inner = some[0]
    if not inner:
        single = {"enum": [schema["const"]]} if "const" in schema else {}
        return {key: value for key, value in schema.items() if key != "const"} | single
    own = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf"}}
    return {**_merge(inner, definitions=definitions, path=path), **own}
