"""What an engine registers for loads within a step is bounded before the scheduler sees it."""

from __future__ import annotations

import pytest

from kvoffload_agent.server.translate import MAX_SYNC_LOAD_BYTES, WireError, shape_of
from kvoffload_api.wire.messages import Group, Register


def register(budget: int) -> Register:
    return Register(
        seq=1,
        fingerprint="0" * 64,
        identity=b"",
        world_size=1,
        tokens_per_hash=16,
        blocks_per_chunk=1,
        block_hash_bytes=32,
        groups=[Group(kind="full", tokens_per_block=16, block_bytes=4096)],
        sync_load_budget_bytes=budget,
    )


@pytest.mark.parametrize("budget", [0, 1, 1 << 48])
def test_a_budget_up_to_256_tebibytes_is_taken_as_it_is(budget: int) -> None:
    assert shape_of(register(budget)).scheduler.sync_load_budget_bytes == budget
    assert MAX_SYNC_LOAD_BYTES == 1 << 48


@pytest.mark.parametrize("budget", [-1, (1 << 48) + 1, 1 << 62])
def test_a_budget_beyond_the_bound_is_refused_by_name(budget: int) -> None:
    with pytest.raises(WireError, match="sync_load_budget_bytes"):
        shape_of(register(budget))
