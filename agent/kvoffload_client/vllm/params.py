"""A client's ``kv_transfer_params`` on their way to the agent, which alone judges them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvoffload_api.wire.params import MAX_PARAMS_BYTES

# The three fields that mean something take a few hundred bytes; a client that sends megabytes with
# each request must not fill the agent's socket with them.
MAX_VALUE_BYTES = 16 * 1024
# More fields than any connector defines.
MAX_FIELDS = 64
# Of a msgpack map of that many fields.
MAX_HEADER_BYTES = 5


def forwardable(params: Any) -> Any:
    """Return ``params`` as they are, but for what no message can carry.

    Such a value (an integer over 64 bits, an object, megabytes) is replaced by a text that names
    its type: still a malformed value to the agent, which reports it and applies the policy.
    """
    if not isinstance(params, dict):
        return params if _travels(params) else _stand_in(params)
    fields = {
        key: value if _travels(value) else _stand_in(value)
        for key, value in list(params.items())[:MAX_FIELDS]
        if isinstance(key, str) and _travels(key)
    }
    if _size(fields) <= MAX_PARAMS_BYTES:
        return fields
    # Another connector's fields fill the message: those that mean something here are small.
    kept: dict[str, Any] = {}
    left = MAX_PARAMS_BYTES - MAX_HEADER_BYTES
    for key, value in sorted(fields.items(), key=_size):
        left -= _size((key, value))
        if left < 0:
            break
        kept[key] = value
    return kept


def _size(value: Any) -> int:
    return len(msgspec.msgpack.encode(value))


def _travels(value: Any) -> bool:
    """Whether a value survives a message; anything that can go wrong with a stranger's does not."""
    try:
        encoded = msgspec.msgpack.encode(value)
        if len(encoded) > MAX_VALUE_BYTES:
            return False
        msgspec.msgpack.decode(encoded)
    except Exception:  # noqa: BLE001 - encoders call methods of the stranger's objects
        return False
    return True


def _stand_in(value: Any) -> str:
    return f"<{type(value).__name__[:64]}>"
