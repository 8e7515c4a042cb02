"""Who waits for whom: the client's flush decisions, the agent's, and what a step writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.unit.scheduler.sessions.copies import Copy

from kvoffload_client.jobs import JobKey


def check(
    copies: Mapping[JobKey, Copy],
    fresh: Mapping[int, int],
    flush: Collection[JobKey],
    told: Collection[JobKey],
    *,
    boot: int,
    new: Collection[JobKey],
    all_known: bool,
) -> None:
    """The client decides as the agent does, and no fenced block is written before its flush.

    Args:
        copies: Jobs under way, with those that begin with this step.
        fresh: Blocks handed out since the last step, and to which request.
        flush: What the client decided, without the agent.
        told: What the agent decided.
        boot: Of this life of the agent; it knows nothing of jobs of an earlier one.
        new: Stores of this step, which may read what their own request writes in it.
        all_known: Whether the agent knows every request of the step: after its restart it does not
            know those that were running, and the client alone keeps their blocks from harm.
    """
    # What was never begun needs no flush.
    theirs = {key for key in told if key in copies}
    assert theirs <= set(flush), "the agent would flush what the client does not"
    if all_known:
        own = {key for key in flush if key.boot_id == boot}
        assert theirs == own, "the client flushes what the agent would not"
    for key, copy in copies.items():
        for block in {entry[0] for entry in copy.entries} & fresh.keys():
            own_writes = fresh[block] == copy.live.handle
            if not (own_writes and (key in new or copy.job.kind == "load")):
                assert key in flush, "a block is written before its flush"
