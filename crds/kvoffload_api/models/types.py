"""Types of single fields with their bounds; the CRD generator reads the same bounds from them."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, WithJsonSchema

from kvoffload_api import quantity
from kvoffload_api.quantity import parse_quantity

INT32_MAX: Final = 2**31 - 1
# API conventions: a number must survive JSON readers that have only doubles.
INT53_MAX: Final = 2**53 - 1
# A DNS-1123 subdomain: names of nodes, pods, policies.
NAME_MAX: Final = 253
# Uids are UUIDs (36 characters); other forms exist in static pods.
UID_MAX: Final = 64

_INT32: Final[dict[str, Any]] = {"format": "int32"}
_INT64: Final[dict[str, Any]] = {"format": "int64"}

Bool = Annotated[bool, Field(strict=True)]
Tokens = Annotated[int, Field(strict=True, ge=0, le=INT32_MAX, json_schema_extra=_INT32)]
Count = Annotated[int, Field(strict=True, ge=0, le=INT32_MAX, json_schema_extra=_INT32)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=600, json_schema_extra=_INT32)]
ReuseCount = Annotated[int, Field(strict=True, ge=0, le=1000, json_schema_extra=_INT32)]
Priority = Annotated[int, Field(strict=True, ge=0, le=1000, json_schema_extra=_INT32)]
Generation = Annotated[int, Field(strict=True, ge=0, le=INT53_MAX, json_schema_extra=_INT64)]
Bytes = Annotated[int, Field(strict=True, ge=0, le=INT53_MAX, json_schema_extra=_INT64)]

Name = Annotated[str, Field(strict=True, min_length=1, max_length=NAME_MAX)]
Uid = Annotated[str, Field(strict=True, min_length=1, max_length=UID_MAX)]
Hash = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{16}$", max_length=16)]
# Kind, namespace, name, two slashes and a suffix.
SourceText = Annotated[str, Field(strict=True, min_length=1, max_length=360)]
ShortText = Annotated[str, Field(strict=True, max_length=128)]

# A label key: an optional DNS prefix of 253 characters, a slash, a name of 63.
LABEL_KEY_MAX: Final = 317
LabelKey = Annotated[
    str,
    Field(
        strict=True,
        min_length=1,
        max_length=LABEL_KEY_MAX,
        pattern=(
            "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
        ),
    ),
]
LabelValue = Annotated[
    str,
    Field(strict=True, max_length=63, pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"),
]


def _is_quantity(text: str) -> str:
    parse_quantity(text)
    return text


# The bounds are CEL rules, since no schema keyword compares quantities. The first rule says in
# words what the pattern says, so that the refusal can be understood.
Quantity = Annotated[
    str,
    Field(
        strict=True,
        json_schema_extra={
            "pattern": quantity.PATTERN,
            "maxLength": quantity.MAX_LENGTH,
            "x-kubernetes-validations": [
                {
                    "rule": f"self.matches('{quantity.PATTERN}')",
                    "message": f"must be {quantity.ACCEPTED}",
                },
                {
                    "rule": (
                        f"!self.matches('{quantity.PATTERN}') || "
                        f"(quantity(self).compareTo(quantity('{quantity.MINIMUM}')) >= 0 && "
                        f"quantity(self).compareTo(quantity('{quantity.MAXIMUM}')) <= 0)"
                    ),
                    "message": (
                        f"must be at least {quantity.MINIMUM} and at most {quantity.MAXIMUM}: "
                        f"give {quantity.ACCEPTED}"
                    ),
                },
            ],
        },
    ),
    AfterValidator(_is_quantity),
]

# RFC 3339 as the API server writes and accepts it.
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
)


def _is_timestamp(text: str) -> str:
    if _RFC3339.fullmatch(text) is None:
        raise ValueError("must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z")
    datetime.fromisoformat(text)
    return text


Timestamp = Annotated[
    str,
    Field(strict=True),
    AfterValidator(_is_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]


def unique_by(name: str) -> AfterValidator:
    """Return the check that a list-map's items differ in their key, as the API server has it."""

    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({getattr(item, name) for item in items}) != len(items):
            raise ValueError(f"must not have two items with the same `{name}`")
        return items

    return AfterValidator(check)


class Mode(StrEnum):
    """What a KVOffloadPolicy does."""

    ENFORCE = "Enforce"
    DRY_RUN = "DryRun"
    DISABLED = "Disabled"


class RequestOverride(StrEnum):
    """What a request may do to the policy's values."""

    TIGHTEN = "Tighten"
    IGNORE = "Ignore"


class StoreScope(StrEnum):
    """Which tokens of a request are stored."""

    PROMPT_ONLY = "PromptOnly"
    PROMPT_AND_OUTPUT = "PromptAndOutput"


class Medium(StrEnum):
    """What a tier keeps chunks on."""

    CPU = "CPU"
    STORAGE = "Storage"


class Locality(StrEnum):
    """Where a tier is, seen from the engine."""

    LOCAL = "Local"
    REMOTE = "Remote"


class Verdict(StrEnum):
    """What the agent's guard answered when it last asked for bytes."""

    ADMIT = "Admit"
    SHRINK = "Shrink"
    REFUSE = "Refuse"
