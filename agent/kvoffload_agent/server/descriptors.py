"""One frame with descriptors from a connection whose reading is paused.

asyncio reads sockets without ancillary data, which loses descriptors. A peer sends them once, in
its first message after the welcome, so that one frame is read past the transport.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import Sequence
from typing import Final

from kvoffload_api.wire.base import MAX_FDS_PER_FRAME
from kvoffload_api.wire.framing import HEADER, FramingError, decode_from_engine, decode_header
from kvoffload_api.wire.messages import FromEngine

# The message follows the welcome at once; a peer that is slower costs a look at each interval.
LOOK_SECONDS: Final = 0.005
_FD_BYTES: Final = array.array("i").itemsize


async def receive_with_descriptors(
    sock: socket.socket, *, boot_id: int, max_bytes: int, deadline_seconds: float
) -> tuple[FromEngine, list[int]]:
    """Return the next frame's message and its descriptors, which the caller owns.

    Nothing beyond the frame is read.

    Raises:
        FramingError: something else came, or the peer hung up.
        TimeoutError: it did not come in time.
    """
    fds: list[int] = []
    try:
        async with asyncio.timeout(deadline_seconds):
            header = await _read(sock, HEADER.size, fds)
            length = _length(header, boot_id=boot_id, max_bytes=max_bytes)
            return decode_from_engine(await _read(sock, length, fds)), fds
    except BaseException:
        close_all(fds)
        raise


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def _length(header: bytes, *, boot_id: int, max_bytes: int) -> int:
    length, boot = decode_header(header)
    if boot != boot_id:
        raise FramingError("a frame meant for another life of the agent")
    if length > max_bytes:
        raise FramingError(f"{length} bytes, {max_bytes} are the most that it may send")
    return length


async def _read(sock: socket.socket, size: int, fds: list[int]) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part, ancillary, flags, _ = sock.recvmsg(
                size - len(data),
                socket.CMSG_SPACE(MAX_FDS_PER_FRAME * _FD_BYTES),
                socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            await asyncio.sleep(LOOK_SECONDS)
            continue
        except OSError as error:
            raise FramingError(f"the connection broke: {error}") from error
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                came = array.array("i")
                came.frombytes(content[: len(content) - len(content) % _FD_BYTES])
                fds.extend(came)
        if flags & socket.MSG_CTRUNC or len(fds) > MAX_FDS_PER_FRAME:
            raise FramingError("descriptors were lost; is the limit of open files too low?")
        if not part:
            raise FramingError("the peer hung up before it shared its KV memory")
        data += part
    return bytes(data)
