"""The scheduler's state in the form of ``final``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tests.oracle.names import Names
from tests.oracle.tiers import RecordedTier

from kvoffload_agent.scheduler.engine import EngineScheduler
from kvoffload_agent.tiers.policy.arc import key_of
from kvoffload_agent.tiers.policy.lru import LeastRecentlyUsed
from kvoffload_agent.tiers.slots import READY, WRITING


def state_of(
    engine: EngineScheduler, names: Names, ids: Sequence[str], tiers: Sequence[RecordedTier]
) -> dict[str, Any]:
    """Return what a case's ``final`` shows, the numbers of chunks left out."""
    host = engine.pool.host
    refs = host.table.refs[: host.table.count]
    found: dict[str, Any] = {
        "cpu_free": host.table.num_free,
        "cpu_evictable": int(np.count_nonzero(refs == READY)),
        "cpu_writing": int(np.count_nonzero(refs == WRITING)),
    }

    def entries(slots: Iterable[int]) -> list[list[Any]]:
        at = np.array(list(slots), dtype=np.int64)
        keys = map(names.name_of, host.keys(at))
        return [[key, ref] for key, ref in zip(keys, refs[at].tolist(), strict=True)]

    if isinstance(host.policy, LeastRecentlyUsed):
        found["lru"] = entries(host.policy.order())
    else:
        found["t1"] = entries(host.policy.recent)
        found["t2"] = entries(host.policy.frequent)
        found["b1"] = [names.name_of(key_of(ghost)) for ghost in host.policy.recent_ghosts]
        found["b2"] = [names.name_of(key_of(ghost)) for ghost in host.policy.frequent_ghosts]
        found["target_t1"] = host.policy.target
    if host.tracker is not None:
        found["tracker"] = [[names.name_of(key), n] for key, n in host.tracker.counts.items()]
    for number, tier in enumerate(tiers):
        found[f"tier{number}"] = [names.name_of(key) for key in sorted(tier.keys)]
    found["jobs"] = {
        str(job.number): {
            "req": ids[job.request.handle],
            "store": job.store,
            "left": job.left,
        }
        for job in engine.jobs.open_jobs()
    }
    found["next_store"] = {
        ids[handle]: list(state.next_store) for handle, state in engine.requests.items()
    }
    return found
