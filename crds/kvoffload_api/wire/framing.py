"""Frames: a fixed header, then one msgpack message.

The header is ``<u32 length of the message, u64 boot id>``.
The boot id names one life of the agent; an engine learns it from the frame of ``Welcome`` and
repeats it, so that nothing meant for an earlier life is taken for this one. ``Hello`` carries 0.
File descriptors of a ``Map`` or ``Share`` frame are attached to its first byte (SCM_RIGHTS); a
reader keeps received descriptors in a queue and takes them when it decodes the message.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from kvoffload_api.wire.base import MAX_FDS_PER_FRAME, Message
from kvoffload_api.wire.messages import FromAgent, FromEngine

__all__ = ["HEADER", "MAX_FDS_PER_FRAME", "MAX_MESSAGE_BYTES", "FramingError"]

HEADER: Final = struct.Struct("<IQ")

# A request of a million tokens has 62,500 hashes of 32 bytes at 16 tokens a block: 2 MB, and 0.5 MB
# of block ids for each group. 16 MiB holds that for two dozen groups, or a step that resumes two
# dozen such requests; it is also the most that one peer makes the agent keep of an unread frame.
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


class FramingError(Exception):
    """The peer sent bytes that are no frame or no message: its connection must be closed."""


# Params nested deeper than the interpreter's limit can't even be skipped.
_MALFORMED: Final = (msgspec.MsgspecError, RecursionError)

_encoder = msgspec.msgpack.Encoder()
_from_engine = msgspec.msgpack.Decoder(FromEngine)
_from_agent = msgspec.msgpack.Decoder(FromAgent)


def encode(message: Message, *, boot_id: int) -> bytes:
    """Return the frame of a message.

    Raises:
        FramingError: it is larger than ``MAX_MESSAGE_BYTES``.
    """
    frame = bytearray(HEADER.size)
    _encoder.encode_into(message, frame, HEADER.size)
    length = len(frame) - HEADER.size
    if length > MAX_MESSAGE_BYTES:
        raise FramingError(f"a message of {length} bytes is over {MAX_MESSAGE_BYTES} bytes")
    HEADER.pack_into(frame, 0, length, boot_id)
    return bytes(frame)


def decode_header(header: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return (message length, boot id) of ``HEADER.size`` bytes.

    Raises:
        FramingError: the length is out of bounds.
    """
    length, boot_id = HEADER.unpack(header)
    if length == 0 or length > MAX_MESSAGE_BYTES:
        raise FramingError(f"a message length of {length} is not within 1 and {MAX_MESSAGE_BYTES}")
    return length, boot_id


def decode_from_engine(body: bytes | bytearray | memoryview) -> FromEngine:
    """Decode what an engine sent.

    Raises:
        FramingError: it is no message an engine may send.
    """
    try:
        return _from_engine.decode(body)
    except _MALFORMED as error:
        raise FramingError(f"not a message of an engine: {error}") from error


def decode_from_agent(body: bytes | bytearray | memoryview) -> FromAgent:
    """Decode what the agent sent.

    Raises:
        FramingError: it is no message the agent may send.
    """
    try:
        return _from_agent.decode(body)
    except _MALFORMED as error:
        raise FramingError(f"not a message of the agent: {error}") from error
