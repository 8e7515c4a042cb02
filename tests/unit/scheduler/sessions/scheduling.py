"""What an engine's own scheduler does with a request before it builds a step."""

from __future__ import annotations

from tests.unit.scheduler.sessions.copies import Live
from tests.unit.scheduler.sessions.engine import Engine
from tests.unit.scheduler.sessions.messages import Scheduled


def admit(engine: Engine, live: Live, share: int, *, now: bool) -> None:
    """Allocate for what was promised, or query first; then compute some tokens, or load.

    ``now``: a load is not left to a later step.
    """
    hit = engine.match(live) if live.promise is None else live.promise[0]
    if hit is None:
        return
    end = hit or min(live.tokens, share + 12)
    tables = engine.blocks.allocate(live.handle, live.blocks, end)
    if tables is None:
        return
    engine.blocks.slide(tables, hit)
    if not engine.alloc(live, hit, tables):
        return
    if not hit:
        live.state = "running"
        live.computed = 0
        engine.step([(live, end, None)])
    elif now:
        engine.step()


def schedule(engine: Engine, live: Live, share: int) -> Scheduled | None:
    """Give a request blocks for ``share`` more tokens; None: there are not so many."""
    if live.computed >= live.tokens:
        engine.sample(live)
    count = min(share, live.tokens - live.computed)
    engine.blocks.slide(live.blocks, live.computed)
    added = engine.blocks.allocate(live.handle, live.blocks, live.computed + count)
    if added is None:
        return None
    for table, more in zip(live.blocks, added, strict=True):
        table.extend(more)
    if live.state == "running":
        return live, count, added
    live.state = "running"
    return live, count, None
