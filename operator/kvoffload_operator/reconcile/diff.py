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


def project(live: Any, ours: Any) -> Any:
    """Return of ``live`` what stands where ``ours`` has fields.

    Args:
        live: Decoded JSON as the server returned it.
        ours: Decoded JSON as we would apply it.
    """
    if isinstance(ours, Mapping) and isinstance(live, Mapping):
        return {key: project(live.get(key), value) for key, value in ours.items()}
    if isinstance(ours, list | tuple) and isinstance(live, list) and len(live) == len(ours):
        return [project(*pair) for pair in zip(live, ours, strict=True)]
    return live


def differences(live: Any, ours: Any, *, path: str = "") -> list[str]:
    """Return the paths, such as ``spec.template.spec.containers[0].image``, that differ.

    Args:
        live: Decoded JSON as the server returned it.
        ours: Decoded JSON as we would apply it.
        path: Of both.
    """
    if contains(live, ours):
        return []
    if isinstance(ours, Mapping) and isinstance(live, Mapping):
        return [
            found
            for key, value in ours.items()
            for found in differences(live.get(key), value, path=f"{path}.{key}" if path else key)
        ]
    if isinstance(ours, list | tuple) and isinstance(live, list) and len(live) == len(ours):
        return [
            found
            for index, pair in enumerate(zip(live, ours, strict=True))
            for found in differences(*pair, path=f"{path}[{index}]")
        ]
    return [path]
