"""What a broken or hostile peer may send: its connection ends, with a log line, and no other."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer

from kvoffload_api.wire.framing import HEADER, MAX_MESSAGE_BYTES, encode
from kvoffload_api.wire.messages import (
    Alloc,
    Append,
    Complete,
    Finish,
    Hello,
    Mapped,
    Match,
    MatchReply,
    NewRequest,
    Refused,
    Reset,
    ScheduledBlocks,
    Step,
    Welcome,
)

Connect = Callable[[], Peer]


def step(**changes: object) -> Step:
    fields: dict[str, object] = {
        "seq": 5, "handles": b"", "computed": b"", "scheduled": b"", "blocks": [], "new": [],
        "resumed": [], "finished": [], "preempted": [],
    }  # fmt: skip
    return Step(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(0, 0),
        HEADER.pack(MAX_MESSAGE_BYTES + 1, 0) + b"x" * 100,
        HEADER.pack(2**32 - 1, 0),
        HEADER.pack(5, 0) + b"\xc1\xc1\xc1\xc1\xc1",
        HEADER.pack(1, 0) + b"\x90",
        HEADER.pack(60, 0) + b"\x91" * 60,
        HEADER.pack(100_000, 0) + b"x" * 1000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_bytes_that_are_no_hello_close_the_connection(
    agent: Agent, connect: Connect, data: bytes
) -> None:
    peer = connect()
    peer.send_raw(data)
    assert peer.closed_by_agent()
    assert "malformed frame, connection closed" in agent.log()


def test_random_bytes_never_harm_an_engine_that_is_served(agent: Agent, connect: Connect) -> None:
    served = connect()
    served.open()
    dice = random.Random(7)
    for _ in range(100):
        peer = connect()
        peer.hello(key=str(dice.random()))
        peer.expect(Welcome)
        peer.send_raw(dice.randbytes(dice.randrange(1, 300)))
        peer.close()
    served.send(Match(seq=9, handle=1, computed=0))
    refused = served.receive()
    while not isinstance(refused, Refused):
        refused = served.receive()
    assert refused.seq == 9


def test_a_frame_of_another_life_closes_the_connection(agent: Agent, connect: Connect) -> None:
    peer = connect()
    peer.open()
    peer.send_raw(encode(Match(seq=1, handle=1, computed=0), boot_id=peer.boot_id ^ 1))
    assert peer.closed_by_agent()


def test_a_frame_in_single_bytes_is_one_frame(agent: Agent, connect: Connect) -> None:
    peer = connect()
    peer.hello()
    peer.expect(Welcome)
    frame = encode(Match(seq=3, handle=8, computed=0), boot_id=peer.boot_id)
    for number in range(len(frame)):
        peer.send_raw(frame[number : number + 1])
    refused = peer.receive()
    while not isinstance(refused, Refused):
        refused = peer.receive()
    assert refused.seq == 3


@pytest.mark.parametrize(
    "message",
    [
        NewRequest(handle=1, request_id="r", num_tokens=32, num_prompt_tokens=32, hashes=b"odd"),
        NewRequest(handle=1, request_id="r", num_tokens=16, num_prompt_tokens=16, hashes=b"h" * 64),
        NewRequest(handle=1, request_id="r", num_tokens=-1, num_prompt_tokens=0, hashes=b""),
        NewRequest(handle=1, request_id="r", num_tokens=1, num_prompt_tokens=2, hashes=b""),
        Append(handle=77, num_tokens=1, hashes=b""),
        Finish(handle=77, status="stopped", computed=0),
        Complete(done=[1, 2, 3], failed=[-5]),
        Mapped(segments=[0]),
        Match(seq=4, handle=77, computed=0),
        Alloc(seq=4, handle=77, external_tokens=1, blocks=[b""]),
        step(handles=b"123"),
        step(handles=b"\0" * 8),
        step(blocks=[ScheduledBlocks(handle=77, blocks=[])]),
        step(new=[77], resumed=[78], finished=[79], preempted=[80]),
        Reset(seq=4),
        Hello(protocol=1, role="scheduler", session_key="k", rank=0, token="", client_version="x"),
    ],
)
def test_a_message_that_makes_no_sense_changes_nothing(
    agent: Agent, connect: Connect, message: object
) -> None:
    peer = connect()
    peer.open()
    peer.send(message)  # type: ignore[arg-type]
    peer.send(
        NewRequest(handle=2, request_id="r", num_tokens=16, num_prompt_tokens=16, hashes=b"h" * 32)
    )
    peer.send(Match(seq=6, handle=2, computed=0))
    answer = peer.receive()
    while not isinstance(answer, MatchReply):
        assert not isinstance(answer, Refused) or answer.seq in {4, 5}
        answer = peer.receive()
    assert answer.tokens == 0
    assert agent.process.running


def test_a_worker_that_decides_is_sent_away(agent: Agent, connect: Connect) -> None:
    connect().open()
    worker = connect()
    worker.join()
    worker.send(Match(seq=1, handle=1, computed=0))
    assert worker.closed_by_agent()
    worker.close()
    eventually(lambda: agent.sessions()[0]["workers"] == [], what="the worker's end")


def test_an_old_client_is_told_what_to_do(agent: Agent, connect: Connect) -> None:
    peer = connect()
    peer.send(
        Hello(protocol=0, role="scheduler", session_key="k", rank=0, token="", client_version="0")
    )
    answer = peer.receive()
    assert isinstance(answer, Refused)
    assert (answer.seq, answer.code) == (-1, "protocol")
    assert "versions" in answer.message
