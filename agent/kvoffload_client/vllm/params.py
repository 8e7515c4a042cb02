"""A client's ``kv_transfer_params`` on their way to the agent, which alone judges them."""

from __future__ import annotations

from typing import Any

import msgspec

# The three fields that mean something take a few hundred bytes; a client that sends megabytes with
# each request must not fill the agent's socket with them.
MAX_VALUE_BYTES = 16 * 1024
# More fields than any connector defines.
MAX_FIELDS = 64


def forwardable(params: Any) -> Any:
    """Return ``params`` as they are, but for what no message can carry.

    Such a value (an integer over 64 bits, an object, megabytes) is replaced by a text that names
    its type: still a malformed value to the agent, which reports it and applies the policy.
    """
    if not isinstance(params, dict):
        return params if _travels(params) else _stand_in(params)
    fields = [(key, value) for key, value in params.items() if isinstance(key, str)]
    return {
        key: value if _travels(value) else _stand_in(value)
        for key, value in fields[:MAX_FIELDS]
        if _travels(key)
    }


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
