"""What all models have in common: frozen, camelCase on the wire, and rules shared with the CRDs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator
from pydantic.alias_generators import to_camel

# Marks documents that a user wrote: there, null is not the same as absent.
_DOCUMENT: Final = "kvoffload.document"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of a model, checked by the API server (CEL) and by the model (``check``).

    Attributes:
        cel: The rule as ``x-kubernetes-validations`` has it; written with ``has()``, because the
            library that tests it does not know optional chaining.
        message: What may be done instead; for both.
        check: The same rule over the model; true if it holds.
        field_path: The field at fault, such as ``.minTokens``.
        reason: Kubernetes' word for the kind of fault.
    """

    cel: str
    message: str
    check: Callable[[Any], bool]
    field_path: str = ""
    reason: str = ""

    def document(self) -> dict[str, str]:
        """Return the rule as an item of ``x-kubernetes-validations``."""
        given = {
            "rule": self.cel,
            "message": self.message,
            "fieldPath": self.field_path,
            "reason": self.reason,
        }
        return {name: text for name, text in given.items() if text}


def _add_rules(schema: dict[str, Any], model: type[ApiModel]) -> None:
    """Put a model's rules into its JSON schema, as the API server understands them."""
    rules = [rule.document() for rule in model.RULES]
    if issubclass(model, NonEmptyModel):
        schema["minProperties"] = 1
        rules.append(_not_empty(model).document())
    if rules:
        schema["x-kubernetes-validations"] = rules


@cache
def _not_empty(model: type[ApiModel]) -> Rule:
    """Return ``minProperties: 1`` in words, so that its refusal says what to do."""
    names = [str(field.alias) for field in model.model_fields.values()]
    return Rule(
        cel=" || ".join(f"has(self.{name})" for name in names),
        message=f"must set at least one of {', '.join(names)}; leave the block out instead",
        check=lambda block: any(
            getattr(block, name) is not None for name in type(block).model_fields
        ),
        reason="FieldValueRequired",
    )


class ApiModel(BaseModel):
    """Base of all API objects and their parts.

    Unknown fields are refused; ``read`` ignores them instead, for what another version wrote.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        json_schema_extra=_add_rules,
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Return the model of what a user wrote, as strict as the API server.

        Raises:
            pydantic.ValidationError: The document is not valid; names each fault.
        """
        return cls.model_validate(document, by_name=False, by_alias=True, context={_DOCUMENT: True})

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the model of what the API server stores, ignoring fields of newer versions.

        Raises:
            pydantic.ValidationError: The rest is not valid.
        """
        return cls.model_validate(document, by_name=False, by_alias=True, extra="ignore")

    def document(self) -> dict[str, Any]:
        """Return the JSON value of this, without absent fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_absent(cls, data: Any, info: ValidationInfo) -> Any:
        """Treat null as the API server does: the default if there is one, else a fault."""
        if not (info.context or {}).get(_DOCUMENT) or not isinstance(data, Mapping):
            return data
        defaulted = {
            field.alias for field in cls.model_fields.values() if field.default not in (None, ...)
        }
        nulls = sorted(str(key) for key, value in data.items() if value is None)
        if faults := [key for key in nulls if key not in defaulted]:
            raise ValueError(f"`{faults[0]}` must not be null; leave the field out instead")
        return {key: value for key, value in data.items() if value is not None}

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        for rule in self.RULES:
            if not rule.check(self):
                raise ValueError(rule.message)
        return self


class NonEmptyModel(ApiModel):
    """An optional block that must set something when it is there (``minProperties: 1``)."""

    @model_validator(mode="after")
    def _something_is_set(self) -> Self:
        rule = _not_empty(type(self))
        if not rule.check(self):
            raise ValueError(rule.message)
        return self
