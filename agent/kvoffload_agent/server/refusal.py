"""Refuses a connection, with the reason for both sides."""

from __future__ import annotations

import structlog

from kvoffload_agent.server.connection import Connection
from kvoffload_agent.server.stats import Metrics
from kvoffload_api.wire.messages import Refused

_log = structlog.get_logger(__name__)


def refuse(connection: Connection, metrics: Metrics, *, code: str, message: str) -> None:
    """Send the refusal, count it and close; once only."""
    if connection.closing:
        return
    metrics.refused.labels(code).inc()
    _log.warning("connection refused", peer=connection.name, code=code, reason=message)
    connection.send(Refused(seq=-1, code=code, message=message))
    connection.close()
