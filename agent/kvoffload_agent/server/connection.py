"""One connection: frames in, frames and descriptors out, both bounded, both in order."""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from kvoffload_agent.server.descriptors import receive_with_descriptors
from kvoffload_api.wire.framing import (
    HEADER,
    MAX_MESSAGE_BYTES,
    FramingError,
    decode_from_engine,
    decode_header,
    encode,
)
from kvoffload_api.wire.messages import FromAgent, FromEngine

# ``datapath.md`` section 4.1: a preallocated buffer; 256 KiB holds the messages of most steps.
READ_BUFFER_BYTES: Final = 256 * 1024
# Before a peer said who it is, it may send a hello, whose token is a few KiB.
MAX_HELLO_BYTES: Final = 64 * 1024
# A worker's report of every job that may be in flight takes 0.4 MB.
MAX_REPORT_BYTES: Final = 1024 * 1024
# A peer that does not read: a dozen plans of a million tokens each, at 1.5 MB a group.
MAX_UNSENT_BYTES: Final = 32 * 1024 * 1024
# The rest of a frame follows its header at once, unless the peer was stopped or means harm: until
# then it holds a buffer of the frame's size. A debugger's or a busy host's pause is far shorter.
FRAME_SECONDS: Final = 30.0
# The socket buffer was full although nothing of ours is queued: ask again after a scheduler tick.
RETRY_SECONDS: Final = 0.002
# How long a last reply may wait for a peer that does not read.
LINGER_SECONDS: Final = 2.0
DROP_BUFFER_BYTES: Final = 4096  # where bytes of a peer go that was asked to leave

_log = structlog.get_logger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Decodes frames and calls ``on_message`` for each, in order, on the event loop.

    ``on_message`` may call ``pause``: then no further message is delivered until ``resume``.
    Bytes that are no frame close the connection with a log line, they never raise.
    ``on_made`` is called once it can send, ``on_closed`` once the peer's end is really closed.
    """

    def __init__(
        self,
        *,
        sock: socket.socket,
        boot_id: int,
        on_made: Callable[[Connection], None],
        on_message: Callable[[Connection, FromEngine], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self._sock = sock
        self._boot_id = boot_id
        self._on_made = on_made
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._dropped = bytearray(0)
        self._paused = False
        self._delivering = False
        self._frames = 0
        self._late_frame: asyncio.TimerHandle | None = None
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._unsent_bytes = 0
        self._writable = True
        self.trusted = False
        """Set once the peer is identified: until then only a hello's size is accepted."""
        self.max_bytes = MAX_MESSAGE_BYTES
        """Of a frame from this peer, once it is trusted."""
        self.holds_memory = False
        """Set once segments were handed out: then only the peer's own end tells that it left."""
        self.closing = False
        self.name = "unidentified"
        """For log lines: who this is."""

    # --- reading ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (asyncio calls this first)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # pause_writing at the first unsent byte, resume_writing when nothing is left: a frame
        # with descriptors goes past the transport and may only do so when the transport is empty.
        transport.set_write_buffer_limits(high=0)
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go; never empty, since a full buffer was made larger."""
        if self.closing:
            return memoryview(self._dropped)
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver what is complete now; of a peer that was asked to leave nothing is taken."""
        if self.closing:
            return
        self._filled += nbytes
        self._deliver()

    def eof_received(self) -> bool:
        """Close our end too: the peer has unmapped everything or is dead."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Tell the owner, once, that the peer's end is closed."""
        self.closing = True
        self._stop_waiting()
        self._unsent.clear()
        self._buffer = bytearray()
        self._filled = 0
        self._on_closed(self)

    def pause(self) -> None:
        """Deliver nothing and read nothing until ``resume``: an answer needs I/O first."""
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Deliver what was kept, in order, and read on."""
        if self.closing or not self._paused or self._transport is None:
            return
        self._paused = False
        self._transport.resume_reading()
        if not self._delivering:
            self._deliver()

    async def receive_with_descriptors(self) -> tuple[FromEngine, list[int]]:
        """Return the next message and its descriptors, which the caller owns; only while paused.

        Raises:
            FramingError, TimeoutError: see ``descriptors``.
        """
        return await receive_with_descriptors(
            self._sock,
            boot_id=self._boot_id,
            max_bytes=self.max_bytes,
            deadline_seconds=FRAME_SECONDS,
        )

    def _deliver(self) -> None:
        start = 0
        self._delivering = True
        try:
            while not self._paused and not self.closing:
                size = self._frame_size(start)
                if size is None or self._filled - start < size:
                    break
                body = bytes(memoryview(self._buffer)[start + HEADER.size : start + size])
                start += size
                self._frames += 1
                self._on_message(self, decode_from_engine(body))
            self._keep_rest(start)
        except FramingError as error:
            _log.warning("malformed frame, connection closed", peer=self.name, error=str(error))
            self.close()
        finally:
            self._delivering = False

    def _frame_size(self, start: int) -> int | None:
        """Return the bytes of the frame that starts here, None if its header is incomplete."""
        if self._filled - start < HEADER.size:
            return None
        length, boot_id = decode_header(self._buffer[start : start + HEADER.size])
        most = self.max_bytes if self.trusted else MAX_HELLO_BYTES
        if length > most:
            raise FramingError(f"{length} bytes, {most} are the most that it may send")
        if self.trusted and boot_id != self._boot_id:
            raise FramingError("a frame meant for another life of the agent")
        return HEADER.size + length

    def _keep_rest(self, start: int) -> None:
        """Move an incomplete frame to the front, in a buffer that has room for more of it."""
        if self.closing:
            return
        rest = self._filled - start
        room = self._room(start, rest)
        if start or room != len(self._buffer):
            kept = self._buffer[start : self._filled]
            if room != len(self._buffer):
                self._buffer = bytearray(room)
            self._buffer[:rest] = kept
            self._filled = rest
        if not rest:
            self._stop_waiting()
        elif self._late_frame is None:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        """Give the frame that begins now, or began a while ago, its time."""
        loop = asyncio.get_running_loop()
        self._late_frame = loop.call_later(FRAME_SECONDS, self._look_for_rest, self._frames)

    def _look_for_rest(self, frames: int) -> None:
        self._late_frame = None
        if self.closing or not self._filled:
            return
        if self._paused or self._frames != frames:
            self._wait_for_rest()
            return
        _log.warning("a frame did not end in time, connection closed", peer=self.name)
        self.close()

    def _stop_waiting(self) -> None:
        if self._late_frame is not None:
            self._late_frame.cancel()
            self._late_frame = None

    def _room(self, start: int, rest: int) -> int:
        """Return how large the buffer is to be: it follows what came, not what a header claims."""
        size = self._frame_size(start) or HEADER.size
        if max(size, rest + 1) <= READ_BUFFER_BYTES:
            return READ_BUFFER_BYTES
        if rest < len(self._buffer):
            return len(self._buffer)
        # Complete frames wait here while paused: then there is more than one frame.
        return max(min(size, 2 * rest), rest + 1)

    # --- writing ---------------------------------------------------------------------------

    def send(self, message: FromAgent, *, fds: Sequence[int] = ()) -> None:
        """Send a message, with descriptors attached to its first byte; a no-op once closing."""
        if self.closing or self._transport is None:
            return
        try:
            frame = encode(message, boot_id=self._boot_id)
        except FramingError:
            _log.exception("a reply is too large to be sent, connection closed", peer=self.name)
            self.close()
            return
        self._unsent.append((frame, tuple(fds)))
        self._unsent_bytes += len(frame)
        if self._unsent_bytes + self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            _log.warning("a peer does not read its replies, connection closed", peer=self.name)
            self.close()
            return
        self._flush()

    def pause_writing(self) -> None:
        """Note that the transport holds unsent bytes."""
        self._writable = False

    def resume_writing(self) -> None:
        """Send what waited for an empty transport."""
        self._writable = True
        self._flush()

    def _flush(self) -> None:
        while self._unsent and not self.closing and self._transport is not None:
            frame, fds = self._unsent[0]
            if fds:
                if not self._writable:
                    return
                sent = self._send_with_fds(frame, fds)
                if sent is None:
                    return
                frame = frame[sent:]
            self._unsent_bytes -= len(self._unsent.popleft()[0])
            if frame:
                self._transport.write(frame)

    def _send_with_fds(self, frame: bytes, fds: tuple[int, ...]) -> int | None:
        """Return how many bytes went out with the descriptors, None if that must wait."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        try:
            return self._sock.sendmsg([frame], rights)
        except BlockingIOError:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush)
        except OSError as error:
            _log.warning("descriptors could not be sent", peer=self.name, error=str(error))
            self.close()
        return None

    # --- ending ----------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more from the peer and close, after what the transport already took is sent.

        A peer that holds memory is asked to leave instead: closing our end would hide when it is
        gone, and until then it may be copying.
        """
        if self.closing or self._transport is None:
            return
        self.closing = True
        self._stop_waiting()
        if self.holds_memory:
            self._ask_to_leave()
            return
        self._transport.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.abort)

    def abandon(self) -> None:
        """Close whatever the peer holds: the agent ends, and the kernel keeps what is mapped."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def _ask_to_leave(self) -> None:
        """Send end-of-file: the peer unmaps, then closes its end, which is then seen here."""
        assert self._transport is not None
        self._unsent.clear()
        self._buffer = bytearray()
        self._dropped = bytearray(DROP_BUFFER_BYTES)
        self._transport.resume_reading()
        with contextlib.suppress(OSError, RuntimeError):
            self._transport.write_eof()
