"""A peer that writes and reads frames itself: what an honest or a broken client could send."""

from __future__ import annotations

import array
import hashlib
import os
import socket
from pathlib import Path
from typing import TypeVar

import numpy as np

from kvoffload_api.wire.framing import HEADER, decode_from_agent, decode_header, encode
from kvoffload_api.wire.messages import (
    PROTOCOL_VERSION,
    FromAgent,
    FromEngine,
    Group,
    Hello,
    Map,
    Mapped,
    NewRequest,
    Plan,
    Refused,
    Register,
    Registered,
    ScheduledBlocks,
    Step,
    StepReply,
    Welcome,
)

T = TypeVar("T")
TIMEOUT_SECONDS = 20.0
BLOCK_BYTES = 4096
TOKENS_PER_BLOCK = 16


class RefusedError(Exception):
    """The agent refused what a test expected it to take."""


class Closed(Exception):  # noqa: N818 - a state, not a fault
    """The agent closed the connection."""


def int64(*values: int) -> bytes:
    return np.array(values, dtype="<i8").tobytes()


def hashes(count: int, *, seed: bytes = b"x") -> bytes:
    return b"".join(
        hashlib.sha256(seed + number.to_bytes(4, "big")).digest() for number in range(count)
    )


class Peer:
    """One connection. ``identity``: of the engine, so what its partition is called."""

    def __init__(
        self, path: Path, *, identity: bytes = b"a model", block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.identity = identity
        self.block_bytes = block_bytes
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_SECONDS)
        self.sock.connect(str(path))
        self.boot_id = 0
        self.fds: list[int] = []
        self.session = 0

    def close(self) -> None:
        self.sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    # --- frames ----------------------------------------------------------------------------

    def send(self, message: FromEngine) -> None:
        self.send_raw(encode(message, boot_id=self.boot_id))

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> FromAgent:
        header = self._read(HEADER.size)
        length, boot_id = decode_header(header)
        self.boot_id = boot_id
        return decode_from_agent(self._read(length))

    def expect(self, kind: type[T]) -> T:
        """Return the next message of a kind; others are dropped, maps acknowledged."""
        while True:
            message = self.receive()
            if isinstance(message, kind):
                return message
            if isinstance(message, Refused):
                raise RefusedError(f"refused: {message.code}: {message.message}")

    def closed_by_agent(self) -> bool:
        """Read to the end; true if there is one."""
        try:
            while True:
                self.receive()
        except (Closed, ConnectionError):
            return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part, ancillary, _, _ = self.sock.recvmsg(count - len(data), 4096)
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i")
                    fds.frombytes(payload)
                    self.fds.extend(fds)
            if not part:
                raise Closed
            data += part
        return data

    # --- conversations ---------------------------------------------------------------------

    def hello(
        self, *, role: str = "scheduler", key: str = "key", rank: int = 0, token: str = "token-a"
    ) -> None:
        self.send(
            Hello(
                protocol=PROTOCOL_VERSION,
                role=role,
                session_key=key,
                rank=rank,
                token=token,
                client_version="test",
            )
        )

    def ask(self, question: FromEngine, kind: type[T]) -> T:
        """Send a question and return its answer."""
        self.send(question)
        return self.expect(kind)

    def register(self, *, world_size: int = 1) -> Registered:
        self.send(registration(self.identity, world_size=world_size, block_bytes=self.block_bytes))
        return self.expect(Registered)

    def open(self, *, key: str = "key", token: str = "token-a", world_size: int = 1) -> None:
        """Say hello as a scheduler and register."""
        self.hello(key=key, token=token)
        self.session = self.expect(Welcome).session
        self.register(world_size=world_size)

    def join(self, *, key: str = "key", rank: int = 0, token: str = "token-a") -> None:
        """Say hello as a worker."""
        self.hello(role="worker", key=key, rank=rank, token=token)
        self.session = self.expect(Welcome).session

    def map_one(self) -> Map:
        """Take the next segments and acknowledge them."""
        message = self.expect(Map)
        self.send(Mapped(segments=[info.segment for info in message.segments]))
        return message

    def map_some(self) -> None:
        """Acknowledge segments that come within a moment."""
        self.sock.settimeout(0.05)
        try:
            self.map_one()
        except TimeoutError:
            pass
        finally:
            self.sock.settimeout(TIMEOUT_SECONDS)

    def store(self, *, handle: int, blocks: int, seed: bytes = b"x") -> Plan | None:
        """Announce a request of so many blocks, schedule all of it, return the store's plan."""
        tokens = blocks * TOKENS_PER_BLOCK
        self.announce(handle=handle, blocks=blocks, seed=seed)
        table = int64(*range(1, blocks + 1))
        return self.step(handle, computed=0, scheduled=tokens, table=table)

    def announce(self, *, handle: int, blocks: int, seed: bytes = b"x", more: int = 0) -> None:
        """Announce a request of so many blocks and ``more`` tokens."""
        tokens = blocks * TOKENS_PER_BLOCK + more
        self.send(
            NewRequest(
                handle=handle,
                request_id=f"r{handle}",
                num_tokens=tokens,
                num_prompt_tokens=tokens,
                hashes=hashes(blocks, seed=seed),
            )
        )

    def step(self, handle: int, *, computed: int, scheduled: int, table: bytes) -> Plan | None:
        self.send(
            Step(
                seq=100 + handle,
                handles=int64(handle),
                computed=int64(computed),
                scheduled=int64(scheduled),
                blocks=[ScheduledBlocks(handle=handle, blocks=[table])],
                new=[handle],
                resumed=[],
                finished=[],
                preempted=[],
            )
        )
        stores = self.expect(StepReply).stores
        return stores[0] if stores else None


def registration(
    identity: bytes,
    *,
    world_size: int = 1,
    fingerprint: str | None = None,
    block_bytes: int = BLOCK_BYTES,
) -> Register:
    return Register(
        seq=1,
        fingerprint=fingerprint or hashlib.sha256(identity).hexdigest(),
        identity=identity,
        world_size=world_size,
        tokens_per_hash=TOKENS_PER_BLOCK,
        blocks_per_chunk=1,
        block_hash_bytes=32,
        groups=[Group(kind="full", tokens_per_block=TOKENS_PER_BLOCK, block_bytes=block_bytes)],
    )
