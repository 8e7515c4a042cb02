"""Writes image layers and an archive that ``ctr images import`` and ``docker load`` take.

The same content gives the same bytes: names are sorted, times are 0, owners are root, and layers
are not compressed, since compressors differ between versions.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EPOCH = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes under their digest, in a file of that name."""

    file: Path
    digest: str
    size: int

    def described(self, media_type: str, **more: Any) -> dict[str, Any]:
        """Return its OCI descriptor."""
        return {"mediaType": media_type, "digest": self.digest, "size": self.size, **more}


def write_layer(tree: Path, *, directory: Path, public: Sequence[str] = ()) -> Blob:
    """Write a folder's content as a layer.

    Args:
        tree: What is in it.
        directory: Where the layer's file goes.
        public: Folders that everybody may write to, as ``/tmp`` is.
    """
    partial = directory / "layer.partial"
    # GNU's format: neither its headers nor its long names depend on anything but the entry.
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            name = path.relative_to(tree).as_posix()
            entry = tarfile.TarInfo(name)
            entry.mode = 0o1777 if name in public else 0o755
            if path.is_symlink():
                entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                archive.addfile(entry)
            elif path.is_dir():
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                found = path.stat()
                entry.size = found.st_size
                entry.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return keep(partial, directory=directory)


def keep(partial: Path, *, directory: Path) -> Blob:
    """Rename a finished file to its digest."""
    with partial.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    final = directory / digest
    partial.replace(final)
    return Blob(file=final, digest=f"sha256:{digest}", size=final.stat().st_size)


def keep_json(document: Mapping[str, Any], *, directory: Path) -> Blob:
    """Write a document as a blob."""
    partial = directory / "json.partial"
    partial.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    return keep(partial, directory=directory)


def write_archive(
    path: Path,
    *,
    name: str,
    layers: Sequence[Blob],
    config: Mapping[str, Any],
    directory: Path,
) -> str:
    """Write an image's archive and return the digest of its manifest.

    Args:
        path: The archive.
        name: The image's full reference, with a tag.
        layers: Lowest first.
        config: OCI's ``config``: user, entry point, environment, labels.
        directory: Where the blobs are.
    """
    configured = keep_json(
        {
            "created": EPOCH,
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config),
            # Uncompressed: a layer's digest is that of its content as well.
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [{"created": EPOCH} for _ in layers],
        },
        directory=directory,
    )
    manifest = keep_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": configured.described(CONFIG),
            "layers": [layer.described(LAYER) for layer in layers],
        },
        directory=directory,
    )
    tag = name.rpartition(":")[2]
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [manifest.described(MANIFEST, annotations=names)],
    }
    docker = [
        {
            "Config": blob_name(configured),
            "RepoTags": [name],
            "Layers": [blob_name(layer) for layer in layers],
        }
    ]
    partial = path.with_name(f".{path.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as archive:
        add_text(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
        add_text(archive, "index.json", json.dumps(index, sort_keys=True))
        add_text(archive, "manifest.json", json.dumps(docker, sort_keys=True))
        for blob in sorted({configured, manifest, *layers}, key=lambda blob: blob.digest):
            entry = tarfile.TarInfo(blob_name(blob))
            entry.size = blob.size
            with blob.file.open("rb") as content:
                archive.addfile(entry, content)
    partial.replace(path)
    return manifest.digest


def blob_name(blob: Blob) -> str:
    """Return a blob's place in an OCI layout."""
    return f"blobs/{blob.digest.replace(':', '/')}"


def add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    """Add a small file."""
    entry = tarfile.TarInfo(name)
    entry.size = len(text.encode())
    archive.addfile(entry, io.BytesIO(text.encode()))
