"""Whatever a pod sends or leaves unread, the agent keeps a bounded part of it and says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.test_hostile_engines_harm_only_themselves import MIB, resident
from tests.integration.agent.wire import Peer, RefusedError

from kvoffload_agent.server.hub import HELLO_SECONDS
from kvoffload_agent.server.quota import MAX_SESSIONS
from kvoffload_api.wire.framing import HEADER, MAX_MESSAGE_BYTES, encode
from kvoffload_api.wire.messages import Match, MatchReply, NewRequest, Refused

Connect = Callable[[], Peer]


def test_a_pod_opens_so_many_sessions_and_another_pod_is_still_served(
    agent: Agent, connect: Connect
) -> None:
    peers = [connect() for _ in range(MAX_SESSIONS)]
    for number, peer in enumerate(peers):
        peer.open(key=f"flood {number}")
    with pytest.raises(RefusedError, match=f"busy: {MAX_SESSIONS} sessions of this pod"):
        connect().open(key="one more")
    connect().open(key="another pod", token="token-b")
    peers[0].close()
    eventually(lambda: len(agent.sessions()) == MAX_SESSIONS, what="the end of one")
    connect().open(key="after one left")


@pytest.mark.parametrize("count", [5_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_requests_that_never_finish_are_bounded(agent: Agent, connect: Connect, count: int) -> None:
    before = resident(agent)
    peer = connect()
    peer.open()
    peer.sock.settimeout(120)
    for first in range(0, count, 1000):
        peer.send_raw(
            b"".join(
                encode(NewRequest(handle, "r", 16, 16, b""), boot_id=peer.boot_id)
                for handle in range(first, first + 1000)
            )
        )
    answer = None
    with contextlib.suppress(RefusedError):
        peer.send(Match(seq=5, handle=count - 1, computed=0))
        answer = peer.expect(MatchReply)
    # DESIGN: what is refused is recomputed.
    assert (answer is None) == (count > 200_000)
    assert resident(agent) - before < 1000 * MIB
    peer.close()
    eventually(lambda: not agent.sessions(), what="the release", deadline_seconds=60)


def test_a_peer_that_never_reads_is_sent_away(agent: Agent, connect: Connect) -> None:
    before = resident(agent)
    peer = connect()
    peer.open()
    questions = encode(Match(seq=1, handle=77, computed=0), boot_id=peer.boot_id) * 10_000
    with contextlib.suppress(ConnectionError):
        for _ in range(500):
            peer.send_raw(questions)
    eventually(lambda: not agent.sessions(), what="its end")
    assert "a peer does not read its replies, connection closed" in agent.log()
    assert resident(agent) - before < 100 * MIB


def test_the_header_of_a_large_frame_takes_no_memory(agent: Agent, connect: Connect) -> None:
    before = resident(agent)
    peers = [connect() for _ in range(MAX_SESSIONS)]
    for number, peer in enumerate(peers):
        peer.open(key=f"half {number}")
        peer.send_raw(HEADER.pack(MAX_MESSAGE_BYTES, peer.boot_id) + b"x" * 1000)
    probe = connect()
    probe.open(key="probe", token="token-b")
    assert resident(agent) - before < 32 * MIB


@pytest.mark.long
def test_who_says_nothing_is_told_and_sent_away(agent: Agent, connect: Connect) -> None:
    peer = connect()
    peer.sock.settimeout(HELLO_SECONDS + 5)
    answer = peer.receive()
    assert isinstance(answer, Refused)
    assert answer.message == "no hello in time"
    assert peer.closed_by_agent()
