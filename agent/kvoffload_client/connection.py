"""One engine process's connection to the node agent, usable from code that must never wait.

A thread of its own connects, receives and reconnects; sending never waits for the agent. The
thread belongs to the connection and ends with ``close``.
"""

from __future__ import annotations

import array
import contextlib
import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from kvoffload_api.wire.framing import FramingError, encode
from kvoffload_api.wire.messages import Hello, Message, Refused, Welcome
from kvoffload_client.receiver import Frame, FrameReceiver

_log = logging.getLogger(__name__)

# The first retry is quick, because an agent's restart takes about a second; the longest pause
# bounds how long an engine stays without its cache after a long outage.
_FIRST_BACKOFF_SECONDS: Final = 0.05
_LAST_BACKOFF_SECONDS: Final = 2.0
# A full listen queue makes connect wait; after this the agent counts as away.
_CONNECT_SECONDS: Final = 1.0
# A worker's welcome waits for its scheduler, which may still be loading a model: hold the
# connection that long, then try again so that a lost peer is noticed.
_WELCOME_SECONDS: Final = 30.0
_JOIN_SECONDS: Final = 5.0
# A connection that breaks sooner was no recovery: an agent that fails on what we say is not asked
# again and again at the first pace.
_LASTING_SECONDS: Final = 5.0
# What an engine keeps for an agent that does not read: a few messages of the largest size.
_MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024


class Handler(Protocol):
    """What the owner of a connection is told, on the connection's thread, in order."""

    def opened(self, *, boot_id: int, welcome: Welcome) -> None:
        """The agent said welcome; ``send`` works from now on."""

    def received(self, message: Message, fds: list[int]) -> None:
        """A message came, with its descriptors, which the handler now owns.

        Raises:
            FramingError: the message makes no sense here; the connection is closed.
        """

    def closed(self) -> None:
        """The connection that was ``opened`` is gone."""


class Connection:
    """Connects, says hello, hands messages to ``handler``, and connects again when it breaks.

    Args:
        path: the agent's Unix socket.
        hello: makes the first message; asked at every attempt since tokens are renewed.
        handler: who is told.
        name: for the thread and the log, such as ``scheduler`` or ``worker 0``.
    """

    def __init__(
        self, *, path: str, hello: Callable[[], Hello], handler: Handler, name: str
    ) -> None:
        self._path = path
        self._hello = hello
        self._handler = handler
        self._name = name
        self._stop = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._boot_id = 0
        self._outbox = bytearray()
        self._outage_logged = False
        self._settled = False
        self._thread = threading.Thread(
            target=self._run, name=f"kvoffload-{name.replace(' ', '-')}", daemon=True
        )

    def start(self) -> None:
        """Begin to connect in the background."""
        self._thread.start()

    def close(self) -> None:
        """Close the connection and end its thread; ``handler.closed`` has returned by then."""
        self._stop.set()
        self._wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)
        if not self._thread.is_alive():
            for fd in (self._wake_read, self._wake_write):
                with contextlib.suppress(OSError):
                    os.close(fd)

    def send(self, message: Message, *, fds: Sequence[int] = ()) -> bool:
        """Send or queue a message without waiting; False if it cannot be sent.

        A message over the protocol's limit is not sent, and changes nothing else. A connection
        whose peer takes nothing any more is closed. Descriptors go with a message that nothing
        waits in front of, such as the first one; else the connection is closed.
        """
        with self._lock:
            if self._socket is None:
                return False
            try:
                self._push(self._socket, encode(message, boot_id=self._boot_id), fds)
            except FramingError as error:
                _log.info("%s: cannot send %s: %s", self._name, type(message).__name__, error)
                return False
            except OSError as error:
                _log.info("%s: cannot send: %s", self._name, error)
                self._shut()
                return False
            return True

    def settle(self) -> None:
        """Note, on the connection's thread, that the agent has accepted us: an outage is over."""
        self._settled = True
        if self._outage_logged:
            self._outage_logged = False
            _log.warning("%s: the node agent is back", self._name)

    def _push(self, sock: socket.socket, frame: bytes, fds: Sequence[int]) -> None:
        sent = 0
        if fds:
            if self._outbox:
                raise OSError("descriptors cannot be queued behind other messages")
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            sent = sock.sendmsg([frame], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        elif not self._outbox:
            with contextlib.suppress(BlockingIOError):
                sent = sock.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        if sent < len(frame):
            if len(self._outbox) + len(frame) > _MAX_UNSENT_BYTES:
                raise OSError("the agent takes no messages any more")
            self._outbox += memoryview(frame)[sent:]
            self._wake()

    def _shut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def _run(self) -> None:
        backoff = _FIRST_BACKOFF_SECONDS
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._attempt()
            except (OSError, FramingError) as error:
                self._log_outage(error)
            if self._settled and time.monotonic() - begun >= _LASTING_SECONDS:
                backoff = _FIRST_BACKOFF_SECONDS
            # Engines that lost the same agent together must not come back together.
            self._stop.wait(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - not for secrets
            backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)

    def _attempt(self) -> None:
        """Hold one connection until it breaks.

        Raises:
            OSError, FramingError: why it could not be made.
        """
        self._settled = False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(self._path)
            sock.sendall(encode(self._hello(), boot_id=0))
            sock.setblocking(False)
            with contextlib.closing(FrameReceiver(sock)) as receiver:
                frame = self._await_welcome(sock, receiver)
                if frame is None:
                    return
                self._open(sock, frame)
                try:
                    self._serve(sock, receiver)
                except (OSError, FramingError) as error:
                    self._log_outage(error)
                finally:
                    with self._lock:
                        self._socket = None
                        self._outbox.clear()
                    self._handler.closed()

    def _await_welcome(self, sock: socket.socket, receiver: FrameReceiver) -> Frame | None:
        """Return the welcome's frame, or None when the connection is being closed.

        Raises:
            FramingError: something else came.
            OSError: nothing came in time, or the agent refused or hung up.
        """
        deadline = time.monotonic() + _WELCOME_SECONDS
        while not self._stop.is_set():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no welcome within {_WELCOME_SECONDS:g} s")
            if not self._poll(sock, write=False, seconds=left):
                continue
            for frame in receiver.receive():
                if isinstance(frame.message, Refused):
                    raise ConnectionRefusedError(f"{frame.message.code}: {frame.message.message}")
                if not isinstance(frame.message, Welcome) or frame.boot_id == 0:
                    raise FramingError(f"{type(frame.message).__name__} came before the welcome")
                return frame
        return None

    def _open(self, sock: socket.socket, frame: Frame) -> None:
        assert isinstance(frame.message, Welcome)
        with self._lock:
            self._boot_id = frame.boot_id
            self._socket = sock
        self._handler.opened(boot_id=frame.boot_id, welcome=frame.message)

    def _serve(self, sock: socket.socket, receiver: FrameReceiver) -> None:
        while not self._stop.is_set():
            for frame in receiver.pending():
                if frame.boot_id != self._boot_id:
                    raise FramingError(f"boot id {frame.boot_id} within boot {self._boot_id}")
                self._handler.received(frame.message, frame.fds)
            with self._lock:
                waiting = bool(self._outbox)
            readable = self._poll(sock, write=waiting, seconds=_WELCOME_SECONDS)
            with self._lock:
                if self._outbox:
                    with contextlib.suppress(BlockingIOError):
                        sent = sock.send(self._outbox, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                        del self._outbox[:sent]
            if readable:
                receiver.fill()

    def _poll(self, sock: socket.socket, *, write: bool, seconds: float) -> bool:
        """Wait for the socket or a wake-up; return whether the socket can be read."""
        poller = select.poll()
        poller.register(sock, select.POLLIN | (select.POLLOUT if write else 0))
        poller.register(self._wake_read, select.POLLIN)
        events = dict(poller.poll(seconds * 1000))
        if self._wake_read in events:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        return bool(events.get(sock.fileno(), 0) & ~select.POLLOUT)

    def _log_outage(self, error: Exception) -> None:
        if not self._outage_logged and not self._stop.is_set():
            self._outage_logged = True
            _log.warning(
                "%s: no node agent at %s (%s); requests are computed without it until it is back",
                self._name,
                self._path,
                error,
            )
