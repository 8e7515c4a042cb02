"""An image's archive: the same bytes for the same content, and what a runtime needs in it."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

from tools.images.oci import write_archive, write_layer


def tree(folder: Path, *, reverse: bool, time: int) -> Path:
    names = ["etc/passwd", "usr/bin/program", "usr/lib/module.py"]
    for name in reversed(names) if reverse else names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        os.utime(file, (time, time))
    (folder / "usr/bin/program").chmod(0o700)
    (folder / "usr/bin/link").symlink_to("program")
    (folder / "tmp").mkdir()
    return folder


def archive(folder: Path, *, reverse: bool, time: int) -> Path:
    blobs = folder / "blobs"
    blobs.mkdir(parents=True)
    layer = write_layer(
        tree(folder / "tree", reverse=reverse, time=time), directory=blobs, public=["tmp"]
    )
    path = folder / "image.tar"
    config = {"User": "65532:65532"}
    write_archive(
        path, name="docker.io/some/name:1", layers=[layer], config=config, directory=blobs
    )
    return path


def document(path: Path, name: str) -> Any:
    with tarfile.open(path) as found:
        content = found.extractfile(name)
        assert content is not None
        return json.load(content)


def test_neither_times_nor_the_order_of_making_change_a_byte(tmp_path: Path) -> None:
    first = archive(tmp_path / "one", reverse=False, time=1_000_000_000)
    second = archive(tmp_path / "two", reverse=True, time=1_700_000_000)
    assert first.read_bytes() == second.read_bytes()


def test_files_are_roots_and_programs_stay_executable(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    made = tree(tmp_path / "tree", reverse=False, time=1)
    layer = write_layer(made, directory=blobs, public=["tmp"])
    with tarfile.open(layer.file) as found:
        modes = {entry.name: entry.mode for entry in found}
        assert {(entry.uid, entry.gid, entry.mtime) for entry in found} == {(0, 0, 0)}
        assert found.getmember("usr/bin/link").linkname == "program"
    assert modes["usr/bin/program"] == 0o755
    assert modes["etc/passwd"] == 0o644
    assert modes["tmp"] == 0o1777
    assert modes["usr"] == 0o755


def test_containerd_and_docker_find_the_same_layers_under_the_same_name(tmp_path: Path) -> None:
    path = archive(tmp_path / "image", reverse=False, time=1)
    (described,) = document(path, "index.json")["manifests"]
    assert described["annotations"]["io.containerd.image.name"] == "docker.io/some/name:1"
    manifest = document(path, f"blobs/{described['digest'].replace(':', '/')}")
    (docker,) = document(path, "manifest.json")
    assert docker["RepoTags"] == ["docker.io/some/name:1"]
    assert docker["Layers"] == [
        f"blobs/{m['digest'].replace(':', '/')}" for m in manifest["layers"]
    ]
    config = document(path, docker["Config"])
    assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
    assert config["config"]["User"] == "65532:65532"
