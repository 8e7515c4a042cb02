"""A peer that is not wanted hears why before its connection ends."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import Mock

import pytest

from kvoffload_agent.server import hub as module
from kvoffload_agent.server.hub import Hub
from kvoffload_agent.server.listener import Peer
from kvoffload_agent.server.stats import Metrics
from kvoffload_api.wire.framing import HEADER, decode_from_agent, decode_header
from kvoffload_api.wire.messages import FromAgent, Refused


def make_hub() -> Hub:
    unused: Any = Mock(sessions=[], workers={})
    return Hub(
        boot_id=7,
        identifier=unused,
        registry=unused,
        decisions=unused,
        metrics=Metrics(),
        spawn=unused,
    )


async def connect(hub: Hub) -> socket.socket:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    protocol = hub.accept(ours, Peer(pid=1, uid=2, gid=3))
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, ours)
    return theirs


async def heard(sock: socket.socket) -> FromAgent:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(10):
        data = await loop.sock_recv(sock, 1 << 16)
        assert await loop.sock_recv(sock, 1) == b""
    length, _ = decode_header(data[: HEADER.size])
    return decode_from_agent(data[HEADER.size : HEADER.size + length])


async def test_over_the_limit_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 1)
    hub = make_hub()
    first = await connect(hub)
    second = await connect(hub)
    assert await heard(second) == Refused(seq=-1, code="busy", message="over 1 connections")
    hub.close_all()
    first.close()
    second.close()


async def test_while_the_agent_stops() -> None:
    hub = make_hub()
    hub.drain()
    late = await connect(hub)
    answer = await heard(late)
    assert isinstance(answer, Refused)
    assert "the agent stops" in answer.message
    late.close()
