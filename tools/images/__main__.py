"""Builds the images of operator and agent, as archives for ``ctr images import``.

Examples:
  python -m tools.images                      both, into dist/images
  python -m tools.images --output DIR agent   one of them, elsewhere
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.images.oci import Blob, write_archive, write_layer
from tools.images.trees import ROOT, UID, ImageError, debian, kept, project, wheels
from tools.progress import step
from tools.setup import SetupError, find_uv, uv_variables

VERSION = "0.1.0"
REGISTRY = "docker.io/kvoffload"
ENVIRONMENT = (
    "PATH=/usr/bin",
    "PYTHONDONTWRITEBYTECODE=1",  # the root file system is read-only
    "PYTHONUNBUFFERED=1",
    "PYTHONUTF8=1",
)


@dataclass(frozen=True, kw_only=True)
class Image:
    """``scripts``: programs and the functions behind them; the first one is the entry point.

    ``without``: locked packages that none of them imports.
    """

    name: str
    scripts: Mapping[str, str]
    without: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """Its full name."""
        return f"{REGISTRY}/{self.name}:{VERSION}"

    @property
    def config(self) -> dict[str, Any]:
        """What a container of it runs, and as whom."""
        return {
            "User": f"{UID}:{UID}",
            "Env": list(ENVIRONMENT),
            "Entrypoint": [f"/usr/bin/{next(iter(self.scripts))}"],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.title": f"kvoffload-{self.name}",
                "org.opencontainers.image.version": VERSION,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        }


IMAGES = (
    Image(
        name="operator",
        scripts={
            "kvoffload-operator": "kvoffload_operator.entry:operator",
            "kubectl-kvoffload": "kvoffload_operator.entry:plugin",
        },
        without=("numpy",),
    ),
    Image(name="agent", scripts={"kvoffload-agent": "kvoffload_agent.entry:agent"}),
)


def build(images: Sequence[Image], *, output: Path) -> None:
    """Build images and print what they weigh.

    Raises:
        ImageError: a part could not be got or made.
    """
    output.mkdir(parents=True, exist_ok=True)
    uv = find_uv()
    told = uv_variables(uv)
    with step("image layer: Debian's Python"):
        base = kept("debian", make=debian)
    with tempfile.TemporaryDirectory(prefix="kvoffload-images-") as name:
        blobs = Path(name) / "blobs"
        blobs.mkdir()
        lowest = write_layer(base, directory=blobs, public=["tmp"])
        for image in images:
            with step(f"image: {image.name}"):
                lock = ROOT / "requirements" / f"{image.name}.txt"
                install = partial(
                    wheels, base=base, lock=lock, without=image.without, uv=uv, told=told
                )
                needed = kept(f"{image.name}-wheels", lock, Path(__file__), make=install)
                own = Path(name) / image.name
                project(own, base=base, scripts=image.scripts, uv=uv, told=told)
                layers = [lowest, *(write_layer(t, directory=blobs) for t in (needed, own))]
                write(image, layers, output=output, blobs=blobs)


def write(image: Image, layers: Sequence[Blob], *, output: Path, blobs: Path) -> None:
    """Write one image's archive and print its name, digest and layers."""
    path = output / f"{image.name}.tar"
    digest = write_archive(
        path, name=image.reference, layers=layers, config=image.config, directory=blobs
    )
    print(f"  {path}: {image.reference} {digest}")
    for layer, what in zip(layers, ("Debian's Python", "wheels", "kvoffload"), strict=True):
        print(f"    {layer.size / 1e6:7.1f} MB  {what}")
    print(f"    {sum(layer.size for layer in layers) / 1e6:7.1f} MB  together")


def main() -> int:
    """Build what is asked for; exit code 1 with the reason if it cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.images",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="*", choices=[*(image.name for image in IMAGES), []])
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "images")
    arguments = parser.parse_args()
    chosen = [image for image in IMAGES if not arguments.name or image.name in arguments.name]
    try:
        build(chosen, output=arguments.output)
    except (ImageError, SetupError, OSError, TimeoutError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
