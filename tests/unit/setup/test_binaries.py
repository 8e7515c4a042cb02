"""Where the control plane's programs come from, and what is said when they are missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster import binaries


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVOFFLOAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(binaries.ASSETS_VARIABLE, raising=False)


def make_program(directory: Path, name: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


def test_a_given_folder_comes_before_the_cache_which_fills_its_gaps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for binary in binaries.BINARIES:
        make_program(binaries.built_directory(), binary.name)
    given = {make_program(tmp_path / "assets", name) for name in ("etcd", "kubectl")}
    monkeypatch.setenv(binaries.ASSETS_VARIABLE, str(tmp_path / "assets"))
    found = binaries.require()
    assert {found["etcd"], found["kubectl"]} == given
    assert found["kube-controller-manager"].parent == binaries.built_directory()


def test_a_file_that_cannot_be_executed_is_no_program() -> None:
    make_program(binaries.built_directory(), "etcd").chmod(0o644)
    assert binaries.locate("etcd") is None


def test_missing_programs_are_named_with_the_command_that_builds_them() -> None:
    make_program(binaries.built_directory(), "etcd")
    with pytest.raises(binaries.MissingBinaryError) as caught:
        binaries.require()
    message = str(caught.value)
    assert "\n" not in message
    assert "not built yet: kube-apiserver, kubectl, kube-controller-manager;" in message
    assert "`python3 tools/setup.py cluster`" in message


def test_other_pins_get_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = binaries.built_directory()
    for module in ("etcd", "kubernetes"):
        (tmp_path / module).mkdir()
        for name in ("go.mod", "go.sum"):
            text = (binaries.HERE / module / name).read_text()
            (tmp_path / module / name).write_text(text.replace("v1.36.3", "v1.36.4"))
    monkeypatch.setattr(binaries, "HERE", tmp_path)
    assert binaries.built_directory() != before
    assert binaries.kubernetes_version() == "v1.36.4"
