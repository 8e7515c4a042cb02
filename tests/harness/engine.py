"""A reference engine in this process, connected to an installation's agent."""

from __future__ import annotations

import secrets
from itertools import count
from pathlib import Path
from typing import Any

from tests.engine.engine import Engine, EngineOptions
from tests.engine.trace import make_request

from kvoffload_client import ClientSettings

PROMPT_TOKENS = 170
# Chunks of 16 tokens: the last ten tokens of the prompt fill no chunk.
STORED_TOKENS = 160
_names = count()


def make_engine(*, socket: Path, token: Path, **options: Any) -> Engine:
    """Return an engine with small blocks; ``start`` is the caller's."""
    settings = ClientSettings(
        session_key=secrets.token_hex(16),
        socket_path=str(socket),
        token_path=str(token),
        # What is shown here does not depend on the deadline; a loaded machine misses 5 ms.
        hook_deadline_seconds=0.5,
    )
    sizes = {"num_blocks": 256, "num_layers": 2, "layer_bytes": 8192} | options
    return Engine(settings=settings, options=EngineOptions(**sizes))


def serve_prompt(engine: Engine, *, prefix: int = 1, params: Any = None) -> int:
    """Serve the prompt on an empty device; returns how many tokens were loaded for it.

    Raises:
        AssertionError: a byte was wrong.
    """
    before = engine.stats.loaded_tokens
    engine.pool.unregister(range(engine.options.num_blocks))
    engine.add(
        make_request(f"request-{next(_names)}", prefix=prefix, num_prompt_tokens=PROMPT_TOKENS),
        params=params,
    )
    engine.run([])
    assert engine.stats.mismatches == 0
    return engine.stats.loaded_tokens - before
