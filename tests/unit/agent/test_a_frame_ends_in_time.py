"""A peer that begins a frame and stops is sent away, and one that is slow is not."""

from __future__ import annotations

import asyncio
import socket

import pytest
from structlog.testing import capture_logs

from kvoffload_agent.server import connection as module
from kvoffload_agent.server.connection import Connection
from kvoffload_api.wire.framing import HEADER, MAX_MESSAGE_BYTES, encode
from kvoffload_api.wire.messages import FromEngine, NewRequest, Reset

SECONDS = 0.1


async def _connect(heard: list[FromEngine]) -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    made = Connection(
        sock=ours,
        boot_id=3,
        on_made=lambda _: None,
        on_message=lambda _, message: heard.append(message),
        on_closed=lambda _: None,
    )
    made.trusted = True
    await asyncio.get_running_loop().connect_accepted_socket(lambda: made, ours)
    return made, theirs


async def test_half_a_frame_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_SECONDS", SECONDS)
    heard: list[FromEngine] = []
    made, theirs = await _connect(heard)
    loop = asyncio.get_running_loop()
    with theirs, capture_logs() as lines:
        await loop.sock_sendall(theirs, encode(Reset(1), boot_id=3)[:-1])
        async with asyncio.timeout(10):
            assert await loop.sock_recv(theirs, 1) == b"", "the connection is closed"
    assert made.closing
    assert heard == []
    assert [line["event"] for line in lines] == ["a frame did not end in time, connection closed"]


async def test_frames_that_go_on_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_SECONDS", SECONDS)
    heard: list[FromEngine] = []
    made, theirs = await _connect(heard)
    loop = asyncio.get_running_loop()
    frame = encode(Reset(1), boot_id=3)
    with theirs:
        for _ in range(10):
            # The end of a frame and the beginning of the next one: never a whole number of them.
            await loop.sock_sendall(theirs, frame[:5])
            await asyncio.sleep(SECONDS / 4)
            await loop.sock_sendall(theirs, frame[5:])
        while len(heard) < 10:  # noqa: ASYNC110 - the other side of the socket has no event
            await asyncio.sleep(0.01)
        assert not made.closing
        made.close()
        await asyncio.sleep(0)


async def test_the_buffer_follows_what_came_and_not_what_a_header_claims() -> None:
    heard: list[FromEngine] = []
    made, theirs = await _connect(heard)
    loop = asyncio.get_running_loop()
    message = NewRequest(1, "r", 1, 1, bytes(5_000_000))
    frame = encode(message, boot_id=3)
    with theirs:
        await loop.sock_sendall(theirs, HEADER.pack(MAX_MESSAGE_BYTES, 3) + b"x")
        await asyncio.sleep(0.05)
        assert len(made.get_buffer(-1)) <= module.READ_BUFFER_BYTES
    made, theirs = await _connect(heard)
    with theirs:
        await loop.sock_sendall(theirs, frame[:1_000_000])
        await asyncio.sleep(0.05)
        assert len(made.get_buffer(-1)) < 2_000_000
        await loop.sock_sendall(theirs, frame[1_000_000:] + encode(Reset(1), boot_id=3))
        async with asyncio.timeout(10):
            while len(heard) < 2:  # noqa: ASYNC110 - the other side of the socket has no event
                await asyncio.sleep(0.01)
        assert heard == [message, Reset(1)]
        assert len(made.get_buffer(-1)) == module.READ_BUFFER_BYTES
        made.close()
        await asyncio.sleep(0)
