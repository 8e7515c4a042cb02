"""Logs on standard error: JSON lines for machines; for people, coloured on a terminal."""

from __future__ import annotations

import logging
import os
import sys

import structlog
from structlog.typing import Processor


def configure(*, console: bool, debug: bool) -> None:
    """Send our own records and those of libraries through one formatter.

    Args:
        console: for people rather than machines.
        debug: every decision, not only what changed something.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        structlog.processors.format_exc_info,
    ]
    # Colours are for eyes: none in files and pipes, and none for who does not want them
    # (https://no-color.org: any value that is not empty).
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=colors)
        if console
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in ("asyncio", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
