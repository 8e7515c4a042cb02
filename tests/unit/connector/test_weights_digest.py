"""Engines share chunks only if their weights are the same."""

from __future__ import annotations

from pathlib import Path

from kvoffload_client.vllm.identity import weights_digest


def folder(path: Path, *, weights: bytes) -> str:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(weights)
    return str(path)


def test_the_same_weights_in_two_places_are_the_same(tmp_path: Path) -> None:
    first = folder(tmp_path / "first", weights=b"w" * 5_000_000)
    second = folder(tmp_path / "second", weights=b"w" * 5_000_000)
    assert weights_digest(first) == weights_digest(second) != ""


def test_other_weights_at_the_end_of_a_file_of_the_same_size_differ(tmp_path: Path) -> None:
    first = folder(tmp_path / "first", weights=b"w" * 5_000_000)
    second = folder(tmp_path / "second", weights=b"w" * 4_999_999 + b"x")
    assert weights_digest(first) != weights_digest(second)


def test_another_configuration_differs(tmp_path: Path) -> None:
    first = folder(tmp_path / "first", weights=b"w")
    before = weights_digest(first)
    (tmp_path / "first" / "config.json").write_text('{"rope_theta": 1}')
    assert weights_digest(first) != before


def test_a_model_of_a_repository_is_named_by_its_revision_alone() -> None:
    assert weights_digest("organisation/model") == ""
