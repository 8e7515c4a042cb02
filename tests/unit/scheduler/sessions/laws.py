"""What always holds of an agent's pool and the engines at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from tests.unit.scheduler.sessions.agent import Agent
from tests.unit.scheduler.sessions.blocks import BLOCKS
from tests.unit.scheduler.sessions.engine import Engine

from kvoffload_agent.tiers.slots import EMPTY, READY, WRITING


def refs_are_those_of_open_transfers(agent: Agent, engines: Sequence[Engine]) -> None:
    """No pin and no slot leaks: each belongs to a copy or to a tier's transfer that is open."""
    pins: Counter[int] = Counter()
    writing: list[int] = []
    for engine in engines:
        jobs = engine.scheduler.jobs
        for job in (*jobs.open_jobs(), *jobs.held_jobs()):
            if job.store:
                writing += job.slots.tolist()
            else:
                pins.update(job.slots.tolist())
    for tier in agent.tiers:
        for transfer in (*tier.pending.values(), *tier.unreported.values()):
            if transfer.load:
                writing += transfer.slots
            else:
                pins.update(transfer.slots)
    for items in agent.pool.below._promotions.values():
        writing += [slot for _, slot in items]
    assert len(set(writing)) == len(writing), "two write one slot"
    table = agent.pool.host.table
    refs = table.refs[: table.count]
    assert set(np.flatnonzero(refs == WRITING).tolist()) == set(writing)
    assert {slot: int(refs[slot]) for slot in np.flatnonzero(refs > 0).tolist()} == pins
    assert (refs >= EMPTY).all()


def slots_add_up(agent: Agent) -> None:
    """Every slot is in use, free, or retired and empty; none is free twice."""
    table = agent.pool.host.table
    empty = table.refs[: table.count] == EMPTY
    assert int(np.count_nonzero(empty & ~table.retired[: table.count])) == table.num_free
    assert len(set(table.freed)) == len(table.freed)
    assert empty[list(table.freed)].all()


def every_key_leads_to_its_slot(agent: Agent) -> None:
    host = agent.pool.host
    slots = np.flatnonzero(host.table.keyed[: host.table.count])
    for slot, (group, key) in zip(slots.tolist(), host.keys(slots), strict=True):
        assert host.index.find(group, [key]).tolist() == [slot]


def every_open_job_is_a_copy(engines: Sequence[Engine]) -> None:
    """The agent waits for nothing that an engine does not know of."""
    for engine in engines:
        known = {copy.job.key for copy in (*engine.copies.values(), *engine.planned)}
        jobs = engine.scheduler.jobs
        open_jobs = {
            engine.session.key(job.number) for job in (*jobs.open_jobs(), *jobs.held_jobs())
        }
        assert open_jobs <= known
        assert open_jobs == {key for key in known if key.boot_id == engine.agent.boot}


def each_block_has_one_owner(engines: Sequence[Engine]) -> None:
    """Of the model itself."""
    for engine in engines:
        used = [b for live in engine.live.values() for table in live.blocks for b in table if b]
        gone = [c.live for c in engine.copies.values() if c.live.handle not in engine.live]
        used += [b for live in set(gone) for table in live.blocks for b in table if b]
        assert len(set(used)) == len(used)
        assert sorted(used + engine.blocks.free) == list(
            range(1, len(used) + len(engine.blocks.free) + 1)
        )


def nothing_is_left(agent: Agent, engines: Sequence[Engine]) -> None:
    """All jobs and transfers ended, all requests are forgotten: chunks are ready or gone."""
    assert not agent.pool.busy
    for tier in agent.tiers:
        assert tier.over == set(range(agent.pool._next_request)), "a tier was not told of an end"
    table = agent.pool.host.table
    assert np.isin(table.refs[: table.count], (READY, EMPTY)).all()
    for engine in engines:
        assert not engine.scheduler.jobs.busy
        assert not engine.scheduler.requests
        assert not engine.scheduler.client.leases
        assert not engine.scheduler.jobs.fences._jobs
        assert not engine.scheduler.jobs.loading
        assert not engine.fences._in_flight
        assert len(engine.blocks.free) == BLOCKS - 1
        engine.scheduler.close()
