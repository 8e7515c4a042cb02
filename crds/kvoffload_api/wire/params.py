"""A request's ``kv_transfer_params`` on the wire: packed apart, so that they are judged apart.

They are a stranger's: whatever the client of an engine wrote. Within ``NewRequest`` they travel as
msgpack that the frame's decoder only skips, and the agent decodes them under a bound of their own.
What can't be packed or unpacked becomes a text that says why. A text is no object, so it is a
malformed ``kv_transfer_params`` to ``tighten``: logged, counted, and as if absent.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

# The fields that mean something take some hundred bytes; other connectors' fields may be beside
# them. Decoded, empty maps take 64 times their encoding, so this is 4 MiB for a moment at worst.
MAX_PARAMS_BYTES: Final = 64 * 1024

NO_PARAMS: Final = msgspec.Raw(msgspec.msgpack.encode(None))


def pack_params(value: Any) -> msgspec.Raw:
    """Return the encoding of ``kv_transfer_params``, at most ``MAX_PARAMS_BYTES``; never raises."""
    try:
        packed = msgspec.msgpack.encode(value)
        if len(packed) > MAX_PARAMS_BYTES:
            return _stand_in(f"{len(packed)} bytes, over {MAX_PARAMS_BYTES}")
        # Deeper than a decoder goes, or what another one would refuse: nobody could read it.
        msgspec.msgpack.decode(packed)
    except Exception as error:  # noqa: BLE001 - encoders call methods of the stranger's objects
        return _stand_in(f"not msgpack: {type(error).__name__}")
    return msgspec.Raw(packed)


def unpack_params(raw: msgspec.Raw) -> Any:
    """Return what ``pack_params`` took; of what is oversize or malformed a text; never raises."""
    size = memoryview(raw).nbytes
    if size > MAX_PARAMS_BYTES:
        return f"<{size} bytes, over {MAX_PARAMS_BYTES}>"
    try:
        return msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, OverflowError, TypeError, RecursionError) as error:
        return f"<not msgpack: {type(error).__name__}>"


def _stand_in(reason: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(f"<{reason}>"))
