"""Cases in which the recorded engine is wrong, and the outcome that is asserted instead.

The recorded engine fails an assertion, or ignores a cap, in these; a scheduler that matched it
would be as wrong. Each entry looks at the first result that differs; the rest has no meaning.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.oracle.replay import MismatchError, Replay


def _second_reset_succeeds(replay: Replay, error: MismatchError) -> bool:
    """Two resets in a row leave nothing behind; the recorded engine fails an assertion."""
    host = replay.pool.host
    return (
        error.op["op"] == "reset_cache"
        and error.what == "error"
        and error.got is None
        and host.table.num_free == host.table.count
        and not replay.engine.jobs.open_jobs()
    )


def _nothing_is_stored_beyond_the_cap(replay: Replay, error: MismatchError) -> bool:
    """No store reaches beyond the request's cap; the recorded engine ignores it, or asserts."""
    if error.op["op"] != "step":
        return False
    requests = replay.engine.requests
    for job in replay.engine.jobs.open_jobs():
        cap = requests[job.request.handle].caps.max_offload_tokens
        if not job.store or cap is None:
            continue
        hashes = job.request.hashes
        for _, key in replay.pool.host.keys(job.slots):
            end = (hashes.index(key) + 1) * replay.engine.geometry.tokens_per_hash
            if end > cap:
                return False
    return True


BETTER: dict[str, Callable[[Replay, MismatchError], bool]] = {
    "hand-reset-twice-without-a-step-fails": _second_reset_succeeds,
    "hand-mamba-partial-tail-store-cap-fails": _nothing_is_stored_beyond_the_cap,
    "hand-mamba-partial-tail-store-cap-zero-is-no-cap": _nothing_is_stored_beyond_the_cap,
}
