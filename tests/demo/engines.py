"""Reference engines as the demo runs them, and the table that follows them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from tests.demo.table import Figures, render, total
from tests.harness.processes import NotReadyError, Process

TRACE = Path(__file__).resolve().parents[1] / "data" / "traces" / "mooncake_conversation_2000.jsonl"
# The table is for people: four frames a second read smoothly and cost the engines nothing.
FRAME_SECONDS = 0.25
# Where there is no terminal, a line every few seconds shows that something goes on.
LINE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """How one engine is started; ``arguments`` go to the reference engine as they are."""

    name: str
    socket: Path
    requests: int
    """Of the trace's first so many requests, this engine serves its shard."""
    shard: tuple[int, int] = (0, 1)
    token: Path | None = None
    arguments: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class RunningEngine:
    """A reference engine, the file of its statistics, and how many requests it will serve."""

    process: Process
    stats: Path
    requests_total: int

    def figures(self) -> Figures:
        """Return its latest figures."""
        return Figures.read(self.stats, requests_total=self.requests_total)

    def check_alive(self) -> None:
        """See that it runs or has served everything.

        Raises:
            NotReadyError: it ended before; the message says where and with which last lines.
        """
        if self.process.running or (done := self.figures().requests) == self.requests_total:
            return
        last_lines = self.process.last_lines()
        raise NotReadyError(
            f"{self.process.name} ended with exit code {self.process.popen.returncode} after "
            f"{done} of {self.requests_total} requests"
            + (f"; its last lines:\n{last_lines}" if last_lines else " and said nothing")
        )


def start_engine(run: EngineRun, *, directory: Path) -> RunningEngine:
    """Start a reference engine."""
    stats = directory / f"{run.name}.stats.jsonl"
    number, of = run.shard
    command = [
        sys.executable, "-m", "tests.engine",
        "--socket", str(run.socket), "--trace", str(TRACE), "--requests", str(run.requests),
        "--shard", f"{number}/{of}", "--name", run.name, "--stats-file", str(stats),
        "--need-agent", *run.arguments,
    ]  # fmt: skip
    if run.token is not None:
        command += ["--token-file", str(run.token)]
    return RunningEngine(
        process=Process(command, name=run.name, log=directory / f"{run.name}.log"),
        stats=stats,
        requests_total=len(range(number, run.requests, of)),
    )


def follow(
    console: Console,
    *,
    title: str,
    engines: Mapping[str, RunningEngine],
    policies: Callable[[], Sequence[tuple[str, str]]],
    news: Sequence[str],
    each_frame: Callable[[Figures], None],
    deadline_seconds: float,
) -> dict[str, Figures]:
    """Show the table until every engine ended; returns their last figures.

    Raises:
        NotReadyError: one of them ended early.
        TimeoutError: they did not end in time.
    """
    until = time.monotonic() + deadline_seconds
    next_line = 0.0

    def read() -> dict[str, Figures]:
        return {name: engine.figures() for name, engine in engines.items()}

    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            ended = not any(engine.process.running for engine in engines.values())
            for engine in engines.values():
                engine.check_alive()
            figures = read()
            all_of_them = total(list(figures.values()))
            if console.is_terminal or ended:
                live.update(
                    render(
                        title=title,
                        engines=figures,
                        policies=policies(),
                        news=news,
                        width=console.width,
                    ),
                    refresh=True,
                )
            elif time.monotonic() >= next_line:
                next_line = time.monotonic() + LINE_SECONDS
                console.print(summary_line(all_of_them))
            if ended:
                break
            each_frame(all_of_them)
            if time.monotonic() > until:
                raise TimeoutError(f"the engines did not end within {deadline_seconds:.0f} s")
            time.sleep(FRAME_SECONDS)
    console.print()
    return figures


def summary_line(figures: Figures) -> str:
    """Return one line for logs."""
    return (
        f"  {figures.requests}/{figures.requests_total} requests, "
        f"{figures.loaded_bytes / 2**20:,.0f} MiB loaded, {figures.stored_tokens:,} tokens stored, "
        f"{sum(figures.limited.values()):,} tokens refused, "
        f"{figures.verified_bytes / 2**20:,.0f} MiB verified, {figures.wrong_blocks} wrong blocks"
    )
