"""Errors of the API server, classed by who must act.

The caller decides by class, never by status code:
a ``ClusterError`` passes by itself and is retried,
an ``AccessError`` needs a person with rights on the cluster,
a ``RequestError`` is a fault in what we sent.
"""

from collections.abc import Mapping
from typing import Final

# Long enough for any message of the API server that a person reads, short enough for one log line.
_MESSAGE_LIMIT: Final = 300


class KubeError(Exception):
    """Anything the API server, or the way to it, answered other than success.

    Args:
        message: What happened, in one sentence.
        status: The HTTP status, or 0 if there was no answer.
        reason: The ``reason`` of the server's ``Status`` object, or an empty string.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message[:_MESSAGE_LIMIT])
        self.status = status
        self.reason = reason


class ClusterError(KubeError):
    """The cluster must recover (unreachable, overloaded, restarting): try again later."""


class ThrottledError(ClusterError):
    """The server asked to slow down.

    Args:
        message: What happened.
        retry_after: Seconds the server asked us to wait.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message, status=429, reason="TooManyRequests")
        self.retry_after = retry_after


class GoneError(ClusterError):
    """The asked-for resource version is too old: list again."""


class ConflictError(ClusterError):
    """Somebody else wrote first: read again, then decide again."""


class AccessError(KubeError):
    """A person must act: the credentials are missing, expired or lack a permission."""


class NotFoundError(KubeError):
    """The object, or its whole kind, does not exist."""


class RequestError(KubeError):
    """We must act: the server understood the request and refused its content."""


_BY_STATUS: Final[Mapping[int, type[KubeError]]] = {
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
}


def error_for(
    *, status: int, reason: str, message: str, retry_after: float | None = None
) -> KubeError:
    """Return the error for an answer of the API server.

    Args:
        status: HTTP status, or the ``code`` of a ``Status`` object in a watch.
        reason: The ``reason`` of the ``Status`` object.
        message: The ``message`` of the ``Status`` object, or the raw body.
        retry_after: Seconds from the ``Retry-After`` header, if there was one.

    Returns:
        An error that has not been raised yet.
    """
    if status == 429:  # noqa: PLR2004 - HTTP Too Many Requests
        return ThrottledError(message, retry_after=1.0 if retry_after is None else retry_after)
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = ClusterError if status >= 500 else RequestError  # noqa: PLR2004 - HTTP server errors
    return kind(message, status=status, reason=reason)
