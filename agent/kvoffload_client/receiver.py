"""Frames and descriptors from a non-blocking Unix socket."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvoffload_api.wire.framing import (
    HEADER,
    MAX_FDS_PER_FRAME,
    FramingError,
    decode_from_agent,
    decode_header,
)
from kvoffload_api.wire.messages import Map, Message

# Replies are small; a plan of a million tokens is 1.5 MB and takes a few rounds.
_READ_BYTES: Final = 256 * 1024
_FD_BYTES: Final = array.array("i").itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A decoded frame; ``fds`` are the descriptors of a ``Map``, in its order."""

    boot_id: int
    message: Message
    fds: list[int] = field(default_factory=list)


class FrameReceiver:
    """Collects bytes and descriptors; descriptors not handed out are closed by ``close``."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    def receive(self) -> Iterator[Frame]:
        """Read once, then yield the frames that are complete.

        Raises:
            OSError: the peer hung up.
            FramingError: the peer sent something that is no frame.
        """
        self.fill()
        yield from self.pending()

    def fill(self) -> None:
        """Read what has come, without waiting.

        Raises:
            OSError: the peer hung up.
            FramingError: more descriptors came than fit in one frame.
        """
        try:
            data, ancillary, flags, _ = self._socket.recvmsg(
                _READ_BYTES,
                socket.CMSG_SPACE(MAX_FDS_PER_FRAME * _FD_BYTES),
                socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
                self._fds.extend(fds)
        if flags & socket.MSG_CTRUNC:
            raise FramingError("descriptors were lost; is the limit of open files too low?")
        if not data:
            raise ConnectionResetError("the agent hung up")
        self._buffer += data

    def pending(self) -> Iterator[Frame]:
        """Yield frames that are complete.

        Raises:
            FramingError: the bytes are no frame, or its descriptors did not come with it.
        """
        while len(self._buffer) >= HEADER.size:
            length, boot_id = decode_header(self._buffer[: HEADER.size])
            end = HEADER.size + length
            if len(self._buffer) < end:
                return
            message = decode_from_agent(bytes(self._buffer[HEADER.size : end]))
            del self._buffer[:end]
            yield Frame(boot_id=boot_id, message=message, fds=self._take_fds(message))

    def close(self) -> None:
        """Close descriptors that nobody took."""
        while self._fds:
            os.close(self._fds.popleft())

    def _take_fds(self, message: Message) -> list[int]:
        if not isinstance(message, Map):
            return []
        if len(self._fds) < len(message.segments):
            raise FramingError("a map message came without its descriptors")
        return [self._fds.popleft() for _ in message.segments]
