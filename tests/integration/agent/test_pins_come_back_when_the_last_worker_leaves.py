"""A dead engine's slots are quarantined until nobody can be copying, then free within a second."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.agent.agent import Agent, eventually
from tests.integration.agent.wire import Peer

from kvoffload_api.wire.messages import Complete

Connect = Callable[[], Peer]


def ready_engine(agent: Agent, connect: Connect, *, ranks: int = 1) -> tuple[Peer, list[Peer]]:
    scheduler = connect()
    scheduler.open(world_size=ranks)
    workers = []
    for rank in range(ranks):
        worker = connect()
        worker.join(rank=rank)
        workers.append(worker)

    def ready() -> bool:
        for worker in workers:
            worker.map_some()
        return bool(agent.sessions()[0]["ready"])

    eventually(ready, what="a ready session")
    return scheduler, workers


def test_half_written_slots_wait_for_the_worker_and_not_for_the_scheduler(
    agent: Agent, connect: Connect
) -> None:
    scheduler, (worker,) = ready_engine(agent, connect)
    plan = scheduler.store(handle=1, blocks=4)
    assert plan is not None
    held = agent.partition()
    assert held["slots"] - held["free_slots"] >= 4
    taken = held["slots"] - held["free_slots"]
    scheduler.close()
    eventually(lambda: agent.sessions()[0]["ending"], what="the end of the session")
    assert worker.closed_by_agent(), "the worker is asked to leave"
    quarantined = agent.partition()
    assert quarantined["slots"] - quarantined["free_slots"] == taken
    assert agent.sessions()[0]["jobs_in_flight"] == 1
    worker.close()
    seconds = eventually(lambda: not agent.sessions(), what="the release")
    assert seconds < 1.0
    free = agent.partition()
    assert free["free_slots"] == free["slots"]


def test_a_store_that_one_rank_of_two_finished_is_not_readable_when_the_other_died(
    agent: Agent, connect: Connect
) -> None:
    scheduler, workers = ready_engine(agent, connect, ranks=2)
    plan = scheduler.store(handle=1, blocks=2)
    assert plan is not None
    workers[0].send(Complete(done=[plan.job], failed=[]))
    workers[1].close()
    eventually(lambda: agent.sessions()[0]["stores_failed"] == 1, what="the failure of the store")
    free = agent.partition()
    assert free["free_slots"] == free["slots"]


def test_chunks_stay_for_the_next_engine(agent: Agent, connect: Connect) -> None:
    scheduler, (worker,) = ready_engine(agent, connect)
    plan = scheduler.store(handle=1, blocks=3)
    assert plan is not None
    worker.send(Complete(done=[plan.job], failed=[]))
    eventually(lambda: agent.sessions()[0]["tokens_stored"] == 48, what="the store")
    scheduler.close()
    worker.close()
    eventually(lambda: not agent.sessions(), what="the release")
    kept = agent.partition()
    assert kept["slots"] - kept["free_slots"] == 3
    assert kept["sessions"] == 0
    again, _ = ready_engine(agent, connect)
    assert again.store(handle=1, blocks=3) is None, "all three are there already"


def test_a_job_that_was_never_planned_or_is_reported_twice_ends_nothing(
    agent: Agent, connect: Connect
) -> None:
    scheduler, workers = ready_engine(agent, connect, ranks=2)
    plan = scheduler.store(handle=1, blocks=2)
    assert plan is not None
    workers[0].send(Complete(done=[plan.job, plan.job, 999], failed=[998]))
    workers[0].send(Complete(done=[plan.job], failed=[]))
    assert scheduler.step(1, computed=32, scheduled=0, table=b"") is None
    assert agent.sessions()[0]["jobs_in_flight"] == 1
    workers[1].send(Complete(done=[plan.job], failed=[]))
    eventually(lambda: agent.sessions()[0]["jobs_in_flight"] == 0, what="the end of the job")
    assert agent.sessions()[0]["tokens_stored"] == 32
