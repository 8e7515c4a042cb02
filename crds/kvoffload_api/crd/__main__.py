"""Writes the CRDs, or with ``--check`` tells whether the written ones are current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from kvoffload_api.crd.documents import KINDS, file_name, render

_FOLDER: Final = Path(__file__).resolve().parents[2] / "generated"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvoffload_api.crd", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    parser.add_argument("--out", type=Path, default=_FOLDER, help="folder of the CRDs")
    options = parser.parse_args(arguments)
    wanted = {file_name(kind): render(kind) for kind in KINDS}
    present = {path.name: path.read_text() for path in options.out.glob("*.yaml")}
    differing = sorted(name for name in wanted | present if wanted.get(name) != present.get(name))
    if options.check:
        for name in differing:
            sys.stderr.write(f"{options.out / name} is not current: run `make generate`\n")
        return 1 if differing else 0
    options.out.mkdir(parents=True, exist_ok=True)
    for name in differing:
        if name in wanted:
            (options.out / name).write_text(wanted[name])
        else:
            (options.out / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
