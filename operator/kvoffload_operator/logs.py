"""Logs as JSON lines on standard output; an event's name is constant, its facts are fields."""

import logging
import os
import sys
from typing import Final

import structlog
from structlog.typing import Processor

_SHARED: Final[tuple[Processor, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
    structlog.processors.format_exc_info,
)


def configure(*, console: bool = False, debug: bool = False) -> None:
    """Send our own records and those of libraries through one formatter.

    Args:
        console: For people rather than machines.
        debug: Log every pass, not only what changed something.
    """
    # Colours are for eyes: none in files and pipes, and none for who does not want them
    # (https://no-color.org: any value that is not empty).
    colors = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=colors)
        if console
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    # Libraries narrate; what they say below these levels is not about the cluster.
    for name, level in (("asyncio", logging.WARNING), ("aiohttp.access", logging.WARNING)):
        logging.getLogger(name).setLevel(level)
    logging.getLogger("kopf").setLevel(logging.INFO if debug else logging.WARNING)
    # It warns that signals are not its business in a thread, which is how we want it.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
