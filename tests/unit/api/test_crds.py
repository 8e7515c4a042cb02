"""The CRDs that are installed are those of the models, complete and bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field

from kvoffload_api.crd.__main__ import main
from kvoffload_api.crd.documents import KINDS, Kind, crd, file_name
from kvoffload_api.crd.schema import SchemaError, structural
from kvoffload_api.models.base import ApiModel

FOLDER = Path(__file__).resolve().parents[3] / "crds" / "generated"
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


def nodes(schema: dict[str, Any], path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


def root(kind: Kind) -> dict[str, Any]:
    schema: dict[str, Any] = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path)]) == 0

    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert fresh == {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert main(["--check"]) == 0


def test_a_crd_that_is_not_current_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--out", str(tmp_path)])
    (tmp_path / file_name(KINDS[0])).write_text("stale")
    (tmp_path / "other.yaml").write_text("of a kind that is no more")

    assert main(["--check", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert file_name(KINDS[0]) in told
    assert "other.yaml" in told
    assert main(["--out", str(tmp_path)]) == 0
    assert main(["--check", "--out", str(tmp_path)]) == 0


@kinds
def test_each_file_holds_one_crd(kind: Kind) -> None:
    documents = list(yaml.safe_load_all((FOLDER / file_name(kind)).read_text()))

    assert documents == [crd(kind)]


@kinds
def test_every_field_has_a_description(kind: Kind) -> None:
    silent = [
        path
        for path, schema in nodes(root(kind))
        if not schema.get("description") and not path.endswith(("[]", ".*", "$.metadata"))
    ]

    assert silent == []


@kinds
def test_every_list_string_and_map_is_bounded(kind: Kind) -> None:
    unbounded = []
    for path, schema in nodes(root(kind)):
        if path in {"$", "$.apiVersion", "$.kind", "$.metadata"}:
            continue
        match schema.get("type"):
            case "array":
                bounded = "maxItems" in schema and "x-kubernetes-list-type" in schema
            case "string":
                bounded = bool({"maxLength", "enum", "format"} & set(schema))
            case "integer":
                bounded = {"minimum", "maximum", "format"} <= set(schema)
            case "object":
                bounded = "properties" in schema or "maxProperties" in schema
            case _:
                bounded = "x-kubernetes-int-or-string" in schema or schema["type"] == "boolean"
        if not bounded:
            unbounded.append(path)

    assert unbounded == []


@kinds
def test_inherited_fields_have_no_static_default(kind: Kind) -> None:
    defaulted = {path for path, schema in nodes(root(kind)) if "default" in schema}

    assert {path.rpartition(".")[2] for path in defaulted} <= {
        "mode",
        "priority",
        "requestOverride",
        "maxUnavailable",
        "paused",
    }


@kinds
def test_status_is_a_subresource_and_names_are_short(kind: Kind) -> None:
    document = crd(kind)
    names = document["spec"]["names"]

    assert document["spec"]["versions"][0]["subresources"] == {"status": {}}
    assert names["categories"] == ["kvoffload"]
    assert names["shortNames"] == [
        {"KVOffloadPolicy": "kvop", "ClusterKVOffloadPolicy": "ckvop", "KVOffloadNode": "kvon"}[
            kind.kind
        ]
    ]


@kinds
def test_columns_show_ready_and_reason_first_and_age_last(kind: Kind) -> None:
    columns = [
        item["name"] for item in crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    ]

    assert columns[:2] == ["Ready", "Reason"]
    assert columns[-1] == "Age"


@kinds
def test_a_number_of_bytes_is_for_the_wide_table_only(kind: Kind) -> None:
    of = {path.removeprefix("$"): schema for path, schema in nodes(root(kind))}
    columns = crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    # People read `2Gi`; only the schema's byte counts have 64 bits.
    raw = {
        item["name"]: item.get("priority", 0)
        for item in columns
        if of.get(item["jsonPath"], {}).get("format") == "int64"
    }

    assert raw == ({"Mapped": 1} if kind.plural == "kvoffloadnodes" else {})


def test_what_a_crd_cannot_say_is_an_error_of_ours() -> None:
    class Ambiguous(ApiModel):
        value: int | str = Field(description="Either.")

    class Exclusive(ApiModel):
        value: int = Field(gt=0, description="More than zero.")

    with pytest.raises(SchemaError, match="choose between types"):
        structural(Ambiguous)
    with pytest.raises(SchemaError, match="exclusiveMinimum"):
        structural(Exclusive)
