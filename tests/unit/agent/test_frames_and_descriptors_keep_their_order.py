"""The agent's end of a connection, against a peer that reads slowly, late or not at all."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from kvoffload_agent.server import connection as module
from kvoffload_agent.server.connection import Connection
from kvoffload_api.wire.framing import HEADER, decode_from_agent, decode_header, encode
from kvoffload_api.wire.messages import (
    Append,
    FromEngine,
    Map,
    Match,
    Refused,
    SegmentInfo,
)

BOOT = 7


class End:
    """A connection of the agent, its peer's socket, and what was heard."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.heard: list[FromEngine] = []
        self.closed = asyncio.Event()
        self.something = asyncio.Event()
        self.ours = ours
        self.connection = Connection(
            on_made=lambda _: None,
            sock=ours,
            boot_id=BOOT,
            on_message=self._hear,
            on_closed=lambda _: self.closed.set(),
        )
        self.connection.trusted = True

    def _hear(self, _: Connection, message: FromEngine) -> None:
        self.heard.append(message)
        self.something.set()

    async def hear(self, count: int) -> None:
        """Wait until so many messages were delivered."""
        async with asyncio.timeout(5):
            while len(self.heard) < count:
                self.something.clear()
                await self.something.wait()

    async def read(self, count: int, fds: list[int]) -> bytes:
        data = b""
        while len(data) < count:
            try:
                part, ancillary, _, _ = self.peer.recvmsg(min(count - len(data), 4096), 4096)
            except BlockingIOError:
                await asyncio.sleep(0)
                continue
            for _, _, payload in ancillary:
                found = array.array("i")
                found.frombytes(payload)
                fds.extend(found)
            if not part:
                raise EOFError
            data += part
        return data


@pytest.fixture
async def end() -> AsyncIterator[End]:
    made = End()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: made.connection, made.ours)
    yield made
    made.connection.abandon()
    made.peer.close()
    await asyncio.wait_for(made.closed.wait(), 5)


async def test_each_map_arrives_in_its_place_with_its_own_descriptor(end: End) -> None:
    sent: list[int] = []
    files = []
    for number in range(60):
        # More than a socket buffer holds, so that most of it waits for the reader.
        end.connection.send(Refused(seq=number, code="x", message="y" * 50_000))
        fd = os.memfd_create(f"{number}")
        files.append(fd)
        sent.append(os.fstat(fd).st_ino)
        end.connection.send(Map(segments=[SegmentInfo(segment=number, bytes=1)]), fds=[fd])
    got: list[int] = []
    received: list[int] = []
    for number in range(120):
        fds: list[int] = []
        length, boot = decode_header(await end.read(HEADER.size, fds))
        message = decode_from_agent(await end.read(length, fds))
        assert boot == BOOT
        if number % 2 == 0:
            assert isinstance(message, Refused)
            assert (message.seq, fds) == (number // 2, [])
        else:
            assert isinstance(message, Map)
            assert message.segments[0].segment == number // 2
            received += fds
            got += [os.fstat(fd).st_ino for fd in fds]
    assert got == sent
    for fd in (*files, *received):
        os.close(fd)


async def test_a_peer_that_does_not_read_is_closed_at_a_bound(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNSENT_BYTES", 1_000_000)
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    for number in range(100):
        end.connection.send(Refused(seq=number, code="x", message="y" * 50_000))
    assert end.connection.closing
    await asyncio.wait_for(end.closed.wait(), 5)


async def test_messages_wait_while_an_answer_needs_io_and_keep_their_order(end: End) -> None:
    end.connection.pause()
    frames = b"".join(
        encode(Match(seq=number, handle=1, computed=0), boot_id=BOOT) for number in range(500)
    )
    end.peer.sendall(frames)
    await asyncio.sleep(0.02)
    assert end.heard == []
    end.connection.resume()
    await end.hear(500)
    assert [message.seq for message in end.heard if isinstance(message, Match)] == list(range(500))


async def test_a_large_message_does_not_keep_a_large_buffer(end: End) -> None:
    frame = encode(Append(handle=1, num_tokens=1, hashes=b"h" * 3_000_000), boot_id=BOOT)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(end.peer, frame)
    await loop.sock_sendall(end.peer, encode(Match(seq=1, handle=1, computed=0), boot_id=BOOT))
    await end.hear(2)
    assert len(end.connection._buffer) == module.READ_BUFFER_BYTES


async def test_a_peer_that_holds_memory_is_gone_only_when_it_says_so(end: End) -> None:
    end.connection.holds_memory = True
    end.connection.close()
    end.peer.setblocking(True)
    end.peer.settimeout(5)
    assert end.peer.recv(1) == b"", "it is asked to leave"
    end.peer.sendall(b"still copying" * 1000)
    await asyncio.sleep(0.05)
    assert not end.closed.is_set()
    end.peer.close()
    await asyncio.wait_for(end.closed.wait(), 5)
    assert end.heard == []
