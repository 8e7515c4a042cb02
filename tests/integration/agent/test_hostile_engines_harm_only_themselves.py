"""Engines that send nonsense, lie or vanish: another engine is served all the while."""

from __future__ import annotations

import contextlib
import itertools
import select
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.hostile import Dice
from tests.integration.agent.test_pins_come_back_when_the_last_worker_leaves import ready_engine
from tests.integration.agent.wire import Closed, Peer, RefusedError, registration

from kvoffload_api.wire.messages import (
    Complete,
    Map,
    Mapped,
    Match,
    MatchReply,
    Registered,
    Unmap,
    Unmapped,
    Welcome,
)

Connect = Callable[[], Peer]
MIB = 1 << 20


def resident(agent: Agent) -> int:
    """Bytes of the agent's own memory, without segments."""
    status = Path(f"/proc/{agent.process.popen.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


class Bystander:
    """An honest engine with three chunks in its cache."""

    def __init__(self, agent: Agent, connect: Connect) -> None:
        self._handles = itertools.count(1)
        self.scheduler, (worker,) = ready_engine(agent, connect)
        self.worker = worker
        handle = next(self._handles)
        plan = self.scheduler.store(handle=handle, blocks=3)
        assert plan is not None
        worker.send(Complete(done=[plan.job], failed=[]))
        eventually(lambda: self.hit() == 48, what="the store")

    def hit(self) -> int | None:
        """Return what it may load of a prompt of those three chunks and one token."""
        self._answer_the_agent()
        handle = next(self._handles)
        self.scheduler.announce(handle=handle, blocks=3, more=1)
        self.scheduler.send(Match(seq=handle, handle=handle, computed=0))
        return self.scheduler.expect(MatchReply).tokens

    def _answer_the_agent(self) -> None:
        """Map and unmap what the agent asked for: who stays silent for 30 s is sent away."""
        while select.select([self.worker.sock], [], [], 0)[0]:
            message = self.worker.receive()
            if isinstance(message, Map):
                segments = [info.segment for info in message.segments]
                self.worker.send(Mapped(segments=segments))
            elif isinstance(message, Unmap):
                self.worker.send(Unmapped(segments=message.segments))


@pytest.fixture
def bystander(agent: Agent, connect: Connect) -> Bystander:
    return Bystander(agent, connect)


def converse(agent: Agent, dice: Dice, key: str, *, damage: float) -> None:
    """Hold one conversation as a scheduler and a worker, until the agent has had enough."""
    scheduler, worker = Peer(agent.socket), Peer(agent.socket)
    said = contextlib.suppress(Closed, RefusedError, ConnectionError, TimeoutError)
    try:
        with said:
            scheduler.sock.settimeout(1.0)
            scheduler.hello(key=key, token="token-b")
            scheduler.receive()
            honest = dice.random.random() < 0.7
            scheduler.send(registration(b"hostile") if honest else dice.register())
            scheduler.expect(Registered)
        with said:
            worker.sock.settimeout(1.0)
            worker.join(key=key, token="token-b")
            worker.sock.settimeout(0.05)
            while honest:
                worker.map_one()
        for _ in range(60):
            with said:
                scheduler.send_raw(
                    dice.frame(dice.decision(), boot_id=scheduler.boot_id, damage=damage)
                )
                if dice.random.random() < 0.3:
                    worker.send_raw(
                        dice.frame(dice.report(), boot_id=worker.boot_id, damage=damage)
                    )
        with said:
            scheduler.sock.settimeout(0.01)
            while True:
                scheduler.receive()
    finally:
        for peer in dice.random.sample([scheduler, worker], 2):
            peer.close()


@pytest.mark.parametrize("damage", [0.0, 0.01, 0.1])
@pytest.mark.parametrize(
    "conversations", [25, pytest.param(300, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_nonsense_changes_nothing_for_an_honest_engine(
    agent: Agent, bystander: Bystander, damage: float, conversations: int
) -> None:
    before = resident(agent)
    for seed in range(conversations):
        converse(agent, Dice(seed), f"hostile {damage} {seed}", damage=damage)
        assert bystander.hit() == 48, f"seed {seed}"
    eventually(lambda: len(agent.sessions()) == 1, what="the end of the others")
    assert "the scheduler failed" not in agent.log()
    assert "a worker's report failed" not in agent.log()
    assert "Traceback" not in agent.log()
    assert resident(agent) < before + 64 * MIB


def test_a_worker_of_a_rank_that_is_not_there_or_taken_is_refused(
    agent: Agent, connect: Connect
) -> None:
    ready_engine(agent, connect)
    ranks = {0: "connected already", 1: "not within", -1: "not within", 2**62: "not within"}
    for rank, reason in ranks.items():
        with pytest.raises(RefusedError, match=reason):
            connect().join(rank=rank)
    assert agent.sessions()[0]["ready"]


def test_engines_of_one_fingerprint_that_mean_different_things_by_a_key_are_refused(
    agent: Agent, connect: Connect
) -> None:
    ready_engine(agent, connect)
    other = connect()
    other.hello(key="other")
    other.expect(Welcome)
    message = registration(other.identity)
    with pytest.raises(RefusedError, match="blocks and hashes differ"):
        other.ask(msgspec.structs.replace(message, block_hash_bytes=16), Registered)


def test_an_engine_registers_once(agent: Agent, connect: Connect) -> None:
    scheduler, _ = ready_engine(agent, connect)
    with pytest.raises(RefusedError, match="registered already"):
        scheduler.register()
    assert agent.sessions()[0]["ready"]


def test_engines_that_can_never_have_memory_leave_nothing_and_cost_nobody_their_cache(
    agent: Agent, connect: Connect
) -> None:
    scheduler, workers = ready_engine(agent, connect)
    mine = agent.partition()["fingerprint"]
    for peer in (scheduler, *workers):
        peer.close()
    eventually(lambda: not agent.sessions(), what="an idle partition")
    for number in range(50):
        peer = Peer(agent.socket, identity=f"model {number}".encode(), block_bytes=1 << 32)
        peer.open(key=f"huge {number}")
        peer.close()
    eventually(lambda: not agent.sessions(), what="their end")
    left = agent.state()["partitions"]
    assert all(partition["row_bytes"] < 1 << 32 for partition in left)
    assert mine in [partition["fingerprint"] for partition in left]
