"""The live table: one row an engine, what was refused and by which policy underneath."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

MIB = 1024 * 1024
# On a narrower terminal the table goes without lines and padding; then it fits 80 columns.
ROOMY_WIDTH = 110
COLUMNS = (
    "\n\nengine", "\n\nrequests", "GPU\nhits\ntokens", "\nloaded\ntokens", "\nloaded\nMiB",
    "\nstored\ntokens", "\nrefused\ntokens", "recom-\nputed\ntokens", "veri-\nfied\nMiB",
    "\nwrong\nblocks",
)  # fmt: skip
# What refuses besides policies, and why.
REASONS = {"agent/not-ready": "its engine had not mapped the agent's memory yet"}


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
    policies: Sequence[tuple[str, str]],
    news: Sequence[str],
    width: int,
) -> Group:
    """Return the table, the policies in force and the latest news."""
    roomy = width >= ROOMY_WIDTH
    table = Table(
        title=title,
        title_justify="left",
        expand=True,
        box=box.HEAVY_HEAD if roomy else box.SIMPLE_HEAD,
        show_edge=roomy,
        padding=(0, 1) if roomy else 0,
    )
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for name, figures in engines.items():
        table.add_row(*row(name, figures))
    all_of_them = total(list(engines.values()))
    table.add_section()
    table.add_row(*row("all", all_of_them), style="bold")
    in_force = Table.grid(padding=(0, 2))
    for policy, values in policies:
        in_force.add_row(policy, values)
    return Group(
        table,
        refusals(all_of_them.limited),
        Panel(in_force, title="policies in force", title_align="left"),
        *[Text(f"· {line}") for line in news[-6:]],
    )


def refusals(limited: Mapping[str, int]) -> Text:
    """Return who refused how many tokens, one a line."""
    lines = [
        f"refused by {who}: {tokens:,} tokens" + (f" ({REASONS[who]})" if who in REASONS else "")
        for who, tokens in sorted(limited.items())
    ]
    return Text("\n".join(lines) or "refused by nobody yet", style="dim")


def row(name: str, figures: Figures) -> list[str]:
    """Return one row's cells."""
    requests = f"{figures.requests}"
    if figures.requests_total:
        requests += f"/{figures.requests_total}"
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
