"""The live table: one row an engine, what was refused and by which policy underneath."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one engine did so far.

    ``limited``: policy → tokens it did not let the engine load.
    ``largest_load_tokens``: the most that one request loaded at once.
    """

    requests: int = 0
    requests_total: int = 0
    gpu_hit_tokens: int = 0
    loaded_tokens: int = 0
    loaded_bytes: int = 0
    stored_tokens: int = 0
    verified_bytes: int = 0
    wrong_blocks: int = 0
    recomputed_tokens: int = 0
    largest_load_tokens: int = 0
    limited: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, *, requests_total: int) -> Figures:
        """Return the last complete line of an engine's statistics; zeros before the first."""
        try:
            lines = path.read_text().splitlines(keepends=True)
        except OSError:
            return cls(requests_total=requests_total)
        whole = [line for line in lines if line.endswith("\n")]
        if not whole:
            return cls(requests_total=requests_total)
        known: dict[str, Any] = json.loads(whole[-1])
        return cls(
            requests=known["requests_done"],
            requests_total=requests_total,
            gpu_hit_tokens=known["gpu_hit_tokens"],
            loaded_tokens=known["loaded_tokens"],
            loaded_bytes=known["loaded_bytes"],
            stored_tokens=known["stored_tokens"],
            verified_bytes=known["bytes_verified"],
            wrong_blocks=known["mismatches"],
            recomputed_tokens=known["recomputed_tokens"],
            largest_load_tokens=known["largest_load_tokens"],
            limited=known["refused_tokens"],
        )


def render(
    *,
    title: str,
    engines: Mapping[str, Figures],
    policies: Sequence[str],
    news: Sequence[str],
) -> Group:
    """Return the table, the policies in force and the latest news."""
    table = Table(title=title, title_justify="left", expand=True)
    columns = (
        "engine", "requests", "GPU hits\ntokens", "loaded\ntokens", "loaded\nMiB", "stored\ntokens",
        "refused by cap\ntokens", "recomputed\ntokens", "verified\nMiB", "wrong\nblocks",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "engine" else "right")
    for name, figures in engines.items():
        table.add_row(*row(name, figures))
    table.add_section()
    table.add_row(*row("all", total(list(engines.values()))), style="bold")
    limits = total(list(engines.values())).limited
    refused = Text("refused by: ", style="dim")
    refused.append(
        ", ".join(f"{policy} ({tokens:,} tokens)" for policy, tokens in sorted(limits.items()))
        or "nobody yet"
    )
    return Group(
        table,
        refused,
        Panel("\n".join(policies), title="policies in force", title_align="left"),
        *[Text(f"· {line}") for line in news[-6:]],
    )


def row(name: str, figures: Figures) -> list[str]:
    """Return one row's cells."""
    requests = f"{figures.requests:,}"
    if figures.requests_total:
        requests += f"/{figures.requests_total:,}"
    wrong = f"[red]{figures.wrong_blocks}[/red]" if figures.wrong_blocks else "0"
    return [
        name,
        requests,
        f"{figures.gpu_hit_tokens:,}",
        f"{figures.loaded_tokens:,}",
        f"{figures.loaded_bytes / MIB:,.0f}",
        f"{figures.stored_tokens:,}",
        f"{sum(figures.limited.values()):,}",
        f"{figures.recomputed_tokens:,}",
        f"{figures.verified_bytes / MIB:,.0f}",
        wrong,
    ]


def total(all_figures: Sequence[Figures]) -> Figures:
    """Add up several engines."""
    limited: dict[str, int] = {}
    for figures in all_figures:
        for policy, tokens in figures.limited.items():
            limited[policy] = limited.get(policy, 0) + tokens
    names = set(Figures.__dataclass_fields__) - {"limited", "largest_load_tokens"}
    sums = {name: sum(getattr(figures, name) for figures in all_figures) for name in names}
    most = max((figures.largest_load_tokens for figures in all_figures), default=0)
    return Figures(**sums, limited=limited, largest_load_tokens=most)
