"""What the API server answers, as JSON or as an error; no I/O."""

import json
from collections.abc import Mapping
from typing import Any, Final

from kvoffload_operator.kube.errors import (
    ClusterError,
    GoneError,
    KubeError,
    error_for,
)

# Decoded JSON; its shape is the business of whoever asked for it.
Json = Any

_FIRST_ERROR: Final = 400


def accept_header(kind: str = "") -> str:
    """Return the ``Accept`` header that asks for plain JSON, or for one of meta.k8s.io's kinds."""
    plain = "application/json"
    return f"{plain};as={kind};g=meta.k8s.io;v=v1" if kind else plain


def decode(raw: bytes, *, status: int, retry_after: str | None) -> Json:
    """Return the decoded body of an answer.

    Args:
        raw: The body.
        status: HTTP status.
        retry_after: The ``Retry-After`` header, if there was one.

    Raises:
        KubeError: The status is an error; the class says who must act.
    """
    if status < _FIRST_ERROR:
        try:
            return json.loads(raw)
        except ValueError as error:
            raise ClusterError(f"the API server sent {len(raw)} bytes that are no JSON") from error
    told = _status_object(raw)
    raise error_for(
        status=status,
        reason=str(told.get("reason", "")),
        message=str(told.get("message") or raw[:200].decode(errors="replace")),
        retry_after=_seconds(retry_after),
    )


def event(line: bytes) -> tuple[str, Json]:
    """Return type and object of one line of a watch.

    Raises:
        GoneError: It is an ERROR: whatever its code, nothing is known about what was missed.
        ClusterError: It is no event.
    """
    try:
        decoded = json.loads(line)
        kind, item = decoded["type"], decoded["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"the watch sent a broken line of {len(line)} bytes") from error
    if kind == "ERROR":
        raise GoneError(
            str(item.get("message", "the watch failed")),
            status=int(item.get("code", 500)),
            reason=str(item.get("reason", "")),
        )
    return kind, item


def unreachable(error: BaseException) -> KubeError:
    """Return the error for a request that got no answer."""
    return ClusterError(f"the API server did not answer: {type(error).__name__}: {error}")


def _status_object(raw: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(raw)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _seconds(value: str | None) -> float | None:
    try:
        return None if value is None else max(0.0, float(value))
    except ValueError:
        return None
