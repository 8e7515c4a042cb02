"""Label selectors with Kubernetes' meaning."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from kvoffload_api.models.base import ApiModel, Rule
from kvoffload_api.models.types import LABEL_KEY_MAX, LabelKey, LabelValue

# More than any selector seen; every list needs a bound, and CEL's cost estimate uses it.
_MAX_LABELS: Final = 32
_MAX_VALUES: Final = 64

Labels = Mapping[str, str]


class Operator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES: Final = frozenset({Operator.IN, Operator.NOT_IN})


class Requirement(ApiModel):
    """One condition on a label."""

    RULES: ClassVar = (
        Rule(
            cel=(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)"
            ),
            message=(
                "`values` must be given with `In` and `NotIn`, and left out with `Exists` and "
                "`DoesNotExist`"
            ),
            check=lambda item: (item.operator in _WITH_VALUES) == bool(item.values),
            field_path=".values",
            reason="FieldValueInvalid",
        ),
    )

    key: LabelKey = Field(description="Key of the label.")
    operator: Operator = Field(
        description="How it is compared: `In`, `NotIn`, `Exists` or `DoesNotExist`."
    )
    values: (
        Annotated[
            tuple[LabelValue, ...],
            Field(max_length=_MAX_VALUES, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
        ]
        | None
    ) = Field(default=None, description="Values for `In` and `NotIn`; else left out.")

    def matches(self, labels: Labels) -> bool:
        """Tell whether an object with these labels meets this condition."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in (self.values or ())
            case Operator.NOT_IN:
                return value not in (self.values or ())
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None


class Selector(ApiModel):
    """A label selector; all its conditions must hold, so an empty one selects everything."""

    match_labels: (
        Annotated[
            dict[
                Annotated[str, Field(strict=True, max_length=LABEL_KEY_MAX)],
                Annotated[str, Field(strict=True, max_length=63)],
            ],
            Field(max_length=_MAX_LABELS),
        ]
        | None
    ) = Field(default=None, description="Labels that must have exactly these values.")
    match_expressions: (
        Annotated[
            tuple[Requirement, ...],
            Field(max_length=_MAX_LABELS, json_schema_extra={"x-kubernetes-list-type": "atomic"}),
        ]
        | None
    ) = Field(default=None, description="Conditions on labels, all of which must hold.")

    def matches(self, labels: Labels) -> bool:
        """Tell whether an object with these labels is selected."""
        return all(
            labels.get(key) == value for key, value in (self.match_labels or {}).items()
        ) and all(item.matches(labels) for item in self.match_expressions or ())

    def keys(self) -> frozenset[str]:
        """Return the label keys that this selector reads."""
        return frozenset(self.match_labels or {}) | {
            item.key for item in self.match_expressions or ()
        }
