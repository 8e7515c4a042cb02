"""Tables of the documentation, to be run."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def table(page: str, first_column: str, *, holds: str) -> list[dict[str, str]]:
    """Return the rows of the page's table whose header begins so and has a column ``holds``.

    Raises:
        LookupError: there is no such table.
    """
    lines = (DOCS / page).read_text(encoding="utf-8").splitlines()
    for at, line in enumerate(lines):
        header = cells(line)
        if line.startswith(f"| {first_column} ") and holds in header:
            rows = []
            for row in lines[at + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append(dict(zip(header, cells(row), strict=True)))
            return rows
    raise LookupError(f"{page} has no table of {first_column} and {holds}")


def cells(line: str) -> list[str]:
    """Return the cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def number(cell: str) -> int | None:
    """Return a number, None for an empty cell."""
    return int(cell) if cell else None
