"""Tables as kubectl prints them, and JSON and YAML."""

import enum
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import yaml

# kubectl separates columns by three spaces.
_GAP: Final = 3


class Output(enum.StrEnum):
    """Values of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns, the header first."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "".join(cell.ljust(width + _GAP) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def document(value: Any, *, output: Output) -> str:
    """Return a value as JSON or YAML, in the order it was built."""
    if output is Output.JSON:
        return json.dumps(value, indent=2)
    return yaml.safe_dump(value, sort_keys=False).rstrip()


def condition(item: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition of an object; ``Unknown`` if it has none."""
    for entry in (item.get("status") or {}).get("conditions") or ():
        if entry.get("type") == kind:
            return entry["status"], entry.get("reason", ""), entry.get("message", "")
    return "Unknown", "Pending", ""


def age(timestamp: str, *, now: datetime | None = None) -> str:
    """Return the age of an object as kubectl writes it: ``45s``, ``12m``, ``5h``, ``3d``."""
    created = datetime.fromisoformat(timestamp)
    seconds = max(0, int(((now or datetime.now(tz=UTC)) - created).total_seconds()))
    # kubectl's bounds: two minutes in seconds, three hours in minutes, two days in hours.
    for limit, unit, name in ((120, 1, "s"), (10_800, 60, "m"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // unit}{name}"
    return f"{seconds // 86_400}d"
