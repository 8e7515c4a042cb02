"""Whether a live object already says what we would write."""

from collections.abc import Mapping
from typing import Any


def contains(live: Any, ours: Any) -> bool:
    """Whether every field of ``ours`` is in ``live`` with the same value.

    Other fields of ``live`` belong to others (the server's defaults, other field managers).
    Lists are ours as a whole and must be as long.

    Args:
        live: Decoded JSON as the server returned it.
        ours: Decoded JSON as we would apply it.
    """
    if isinstance(ours, Mapping):
        return isinstance(live, Mapping) and all(
            key in live and contains(live[key], value) for key, value in ours.items()
        )
    if isinstance(ours, list | tuple):
        return (
            isinstance(live, list | tuple)
            and len(live) == len(ours)
            and all(contains(*pair) for pair in zip(live, ours, strict=True))
        )
    return bool(live == ours) and isinstance(live, bool) == isinstance(ours, bool)
