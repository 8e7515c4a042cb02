"""The part of metadata that is read; the API server validates all of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from kvoffload_api.models.base import ApiModel

# Objects from files have no creation time; all are then equally old and names decide.
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ObjectMeta(ApiModel):
    """Metadata of an object, as far as we read it."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    name: str = Field(description="Name of the object.")
    namespace: str = Field(default="", description="Its namespace; empty if cluster-scoped.")
    uid: str = Field(default="", description="Its uid; empty for objects from files.")
    generation: int = Field(default=0, description="Counts changes of its spec.")
    resource_version: str = Field(default="", description="Changes with every write.")
    creation_timestamp: datetime = Field(default=_NEVER, description="When it was created.")
    labels: dict[str, str] = Field(default_factory=dict, description="Its labels.")
