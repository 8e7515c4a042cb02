"""Writes the CRDs, or with ``--check`` tells whether the written ones are current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvoffload_api.crd.documents import KINDS, chart_template, file_name, render

_FOLDER: Final = Path(__file__).resolve().parents[2] / "generated"
_CHART: Final = Path(__file__).resolve().parents[3] / "charts" / "kvoffload" / "templates" / "crds"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvoffload_api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    parser.add_argument("--out", type=Path, default=_FOLDER, help="folder of the CRDs")
    parser.add_argument(
        "--chart", type=Path, default=_CHART, help="folder of the chart's templates of them"
    )
    options = parser.parse_args(arguments)
    folders = {
        options.out: {file_name(kind): render(kind) for kind in KINDS},
        options.chart: {file_name(kind): chart_template(kind) for kind in KINDS},
    }
    current = [_keep(folder, wanted, check=options.check) for folder, wanted in folders.items()]
    return 1 if options.check and not all(current) else 0


def _keep(folder: Path, wanted: Mapping[str, str], *, check: bool) -> bool:
    """Make a folder hold just these files, or say which differ; return whether none did."""
    present = {path.name: path.read_text() for path in folder.glob("*.yaml")}
    differing = sorted(
        name for name in {*wanted, *present} if wanted.get(name) != present.get(name)
    )
    for name in differing:
        if check:
            sys.stderr.write(f"{folder / name} is not current: run `make generate`\n")
        elif name in wanted:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(wanted[name])
        else:
            (folder / name).unlink()
    return not differing


if __name__ == "__main__":
    sys.exit(main())
