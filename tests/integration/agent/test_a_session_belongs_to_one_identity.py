"""Sessions are joined by key and rank, and only by the identity that opened them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer, registration

from kvoffload_api.wire.messages import Refused, Welcome

Connect = Callable[[], Peer]


def refusal(peer: Peer) -> Refused:
    message = peer.receive()
    assert isinstance(message, Refused)
    assert message.seq == -1
    assert peer.closed_by_agent()
    return message


def test_another_namespaces_scheduler_may_not_use_the_key(agent: Agent, connect: Connect) -> None:
    connect().open(key="shared", token="token-a")
    thief = connect()
    thief.hello(key="shared", token="token-b")
    assert refusal(thief).code == "identity"


def test_another_namespaces_worker_may_not_join(agent: Agent, connect: Connect) -> None:
    connect().open(key="shared", token="token-a")
    thief = connect()
    thief.hello(role="worker", key="shared", token="token-b")
    assert refusal(thief).code == "identity"
    assert thief.fds == []


def test_a_worker_that_waited_under_another_identity_is_turned_away(
    agent: Agent, connect: Connect
) -> None:
    early = connect()
    early.hello(role="worker", key="guessed", token="token-b")
    # The agent handles hellos one after the other: when the next is answered, this one waits.
    connect().open(key="other", token="token-b")
    connect().open(key="guessed", token="token-a")
    assert refusal(early).code == "identity"
    assert early.fds == []


def test_a_worker_may_come_before_its_scheduler(agent: Agent, connect: Connect) -> None:
    worker, scheduler = connect(), connect()
    worker.hello(role="worker")
    scheduler.open()
    assert worker.expect(Welcome).session == scheduler.session
    worker.map_one()
    eventually(lambda: agent.sessions()[0]["ready"], what="a ready session")


def test_two_namespaces_get_segments_of_their_own(agent: Agent, connect: Connect) -> None:
    inodes = []
    for token in ("token-a", "token-b"):
        connect().open(key=token, token=token)
        worker = connect()
        worker.join(key=token, token=token)
        worker.map_one()
        inodes.append({os.fstat(fd).st_ino for fd in worker.fds})
    assert not inodes[0] & inodes[1]
    namespaces = {part["namespace"] for part in agent.state()["partitions"][-2:]}
    assert namespaces == {"team-a", "team-b"}


def test_a_rank_connects_once_and_within_the_world(agent: Agent, connect: Connect) -> None:
    connect().open(world_size=2)
    connect().join(rank=1)
    for rank, code in ((1, "busy"), (2, "protocol"), (-1, "protocol")):
        worker = connect()
        worker.hello(role="worker", rank=rank)
        assert refusal(worker).code == code


def test_a_key_in_use_is_busy_for_its_own_identity(agent: Agent, connect: Connect) -> None:
    connect().open()
    again = connect()
    again.hello()
    assert refusal(again).code == "busy"


@pytest.mark.parametrize("token", ["", "unknown"])
def test_who_has_no_namespace_is_refused(agent: Agent, connect: Connect, token: str) -> None:
    peer = connect()
    peer.hello(token=token)
    if token:
        assert refusal(peer).code == "identity"
    else:
        assert peer.expect(Welcome).namespace == "default"


def test_a_fingerprint_that_is_not_the_identitys_hash_is_refused(
    agent: Agent, connect: Connect
) -> None:
    peer = connect()
    peer.hello()
    peer.expect(Welcome)
    peer.send(registration(peer.identity, fingerprint="0" * 64))
    answer = peer.receive()
    while not isinstance(answer, Refused):
        answer = peer.receive()
    assert (answer.seq, answer.code) == (1, "layout")
    peer.register()
