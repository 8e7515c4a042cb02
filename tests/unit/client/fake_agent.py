"""A fake agent: a real socket whose answers, silences and deaths a test controls.

It decides nothing by itself; the real agent is used in ``tests/integration``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Self, TypeVar

from kvoffload_api.wire.framing import HEADER, decode_from_engine, decode_header, encode
from kvoffload_api.wire.messages import (
    Hello,
    Map,
    Message,
    Register,
    Registered,
    SegmentInfo,
    Welcome,
)

M = TypeVar("M", bound=Message)
Answer = Callable[..., Message | None]

WAIT_SECONDS = 10.0


class FakePeer:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, hello: Hello, boot_id: int) -> None:
        self.hello = hello
        self.boot_id = boot_id
        self._socket = sock

    def send(self, message: Message, fds: Iterable[int] = (), boot_id: int | None = None) -> None:
        frame = encode(message, boot_id=self.boot_id if boot_id is None else boot_id)
        socket.send_fds(self._socket, [frame[:1]], list(fds))
        self._socket.sendall(frame[1:])

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class FakeAgent:
    """Welcomes everybody, registers every scheduler; further answers are set by ``answers``."""

    def __init__(self, path: Path, *, boot_id: int = 7, welcome: bool = True) -> None:
        self.path = path
        self.boot_id = boot_id
        self.session = 1
        self.answers: dict[type[Message], Answer] = {}
        self.silent = False
        self.hearing = threading.Event()
        self.hearing.set()
        self.peers: list[FakePeer] = []
        self.received: list[tuple[FakePeer, Message]] = []
        self.errors: list[Exception] = []
        self._welcome = welcome
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._listener = self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        assert not self.errors

    def die(self) -> None:
        """Close everything, as the kernel does for a killed process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hearing.set()
        self.path.unlink(missing_ok=True)
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        self._threads.clear()
        self.peers.clear()

    def come_back(self) -> None:
        """Begin a new life with another boot id."""
        self.boot_id += 1
        self.session += 1
        self.received.clear()
        self._listener = self._listen()

    def peer(self, role: str, rank: int = 0) -> FakePeer:
        """Wait for a connection."""

        def find() -> FakePeer | None:
            found = [p for p in self.peers if p.hello.role == role and p.hello.rank == rank]
            return found[-1] if found else None

        with self._changed:
            assert self._changed.wait_for(lambda: find() is not None, WAIT_SECONDS)
            peer = find()
            assert peer is not None
            return peer

    def expect(self, kind: type[M], *, count: int = 1) -> M:
        """Wait for the ``count``-th message of a kind and return it."""

        def find() -> list[M]:
            return [message for _, message in self.received if isinstance(message, kind)]

        with self._changed:
            assert self._changed.wait_for(lambda: len(find()) >= count, WAIT_SECONDS), (
                f"no {kind.__name__} among {[type(m).__name__ for _, m in self.received]}"
            )
            return find()[count - 1]

    def count(self, kind: type[Message]) -> int:
        with self._changed:
            return sum(isinstance(message, kind) for _, message in self.received)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(self.path))
        listener.listen()
        self._spawn(self._accept, listener)
        return listener

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as stream:
            peer: FakePeer | None = None
            with contextlib.suppress(OSError):
                while header := stream.read(HEADER.size):
                    self.hearing.wait(WAIT_SECONDS)
                    length, _ = decode_header(header)
                    body = stream.read(length)
                    if len(body) < length:  # the engine hung up within a message
                        return
                    message = decode_from_engine(body)
                    if isinstance(message, Hello):
                        peer = FakePeer(sock, message, self.boot_id)
                        if self._welcome:
                            peer.send(Welcome("fake", "default", "engine", self.session))
                    assert peer is not None
                    if isinstance(message, Register):
                        peer.send(Registered(message.seq, "partition", 0, self.session))
                    self._note(peer, message)

    def _note(self, peer: FakePeer, message: Message) -> None:
        with self._changed:
            if isinstance(message, Hello):
                self.peers.append(peer)
            self.received.append((peer, message))
            self._changed.notify_all()
        answer = self.answers.get(type(message))
        if answer is not None and not self.silent:
            reply = answer(message)
            if reply is not None:
                peer.send(reply)


def eventually(condition: Callable[[], object]) -> None:
    """Wait for what no event tells: the state of another thread or of the kernel."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sealed_segment(nbytes: int, *, seal: bool = True) -> int:
    """Return the fd of a memfd as the agent makes it."""
    fd = os.memfd_create("segment", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def map_message(numbers: Iterable[int], nbytes: int) -> Map:
    return Map([SegmentInfo(number, nbytes) for number in numbers])
