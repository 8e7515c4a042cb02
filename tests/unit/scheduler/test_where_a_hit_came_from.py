"""The tokens of a hit are told by the tier that each came from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.unit.scheduler.builders import StubTier, full, mamba, sliding

from kvoffload_agent.scheduler.geometry import Geometry
from kvoffload_agent.scheduler.sources import split
from kvoffload_agent.scheduler.types import GroupConfig, SchedulerConfig
from kvoffload_agent.tiers.host import HostConfig
from kvoffload_agent.tiers.policy.base import KeyRun
from kvoffload_agent.tiers.pool import PartitionPool

CHUNK = 16
DISK, MEMORY = 0, 1


def told(
    *groups: GroupConfig,
    ends: Sequence[Sequence[int]],
    origins: dict[tuple[int, int], int] | None = None,
    starts: Sequence[int] | None = None,
    low: int = 0,
    high: int,
) -> dict[str, int]:
    """``ends``: per group where its keys end; ``origins``: (group, end) → tier, else host."""
    tiers = [StubTier(medium="storage"), StubTier(medium="cpu")]
    pool = PartitionPool(HostConfig(), tiers=tiers)
    request = pool.open()
    request.origins = {
        (group, end.to_bytes(4, "big")): tier for (group, end), tier in (origins or {}).items()
    }
    return split(
        pool,
        request,
        Geometry(SchedulerConfig(groups=groups, tokens_per_hash=CHUNK)).groups,
        [
            KeyRun(
                group=number,
                hashes=[end.to_bytes(4, "big") for end in own],
                positions=np.array(own, dtype=np.int64),
            )
            for number, own in enumerate(ends)
        ],
        [low] * len(groups) if starts is None else starts,
        low=low,
        high=high,
    )


def test_what_no_tier_brought_was_in_host_memory() -> None:
    assert told(full(CHUNK), ends=[[16, 32]], high=32) == {"host": 32}


def test_each_key_stands_for_its_own_tokens() -> None:
    assert told(
        full(CHUNK), ends=[[16, 32, 48]], origins={(0, 32): DISK, (0, 48): MEMORY}, high=64
    ) == {"host": 32, "disk": 16, "external_unspecified": 16}


def test_a_tier_of_memory_is_told_as_host_memory() -> None:
    assert told(full(CHUNK), ends=[[16]], origins={(0, 16): MEMORY}, high=16) == {"host": 16}


def test_a_hit_without_tokens_came_from_nowhere() -> None:
    assert told(full(CHUNK), ends=[[16]], low=16, high=16) == {}


def test_only_tokens_of_the_hit_count() -> None:
    before = told(
        full(CHUNK), ends=[[16, 32]], origins={(0, 16): DISK}, starts=[0], low=16, high=64
    )
    assert before == {"host": 16, "external_unspecified": 32}


@pytest.mark.parametrize("promoted", [False, True])
def test_history_that_no_key_covers_is_unspecified(*, promoted: bool) -> None:
    origins = {(0, 999): DISK} if promoted else None  # something else came from a disk
    window = told(sliding(CHUNK, 16), ends=[[64]], origins=origins, starts=[48], low=16, high=64)
    assert window == {"host": 16, "external_unspecified": 32}


@pytest.mark.parametrize("promoted", [False, True])
def test_a_recurrent_state_stands_for_its_whole_prefix(*, promoted: bool) -> None:
    origins = {(0, 999): DISK} if promoted else None
    state = told(mamba(CHUNK), ends=[[64]], origins=origins, starts=[48], low=16, high=64)
    assert state == {"host": 48}


def test_where_groups_differ_the_outermost_tier_counts() -> None:
    groups = (full(CHUNK), sliding(CHUNK, 32))
    assert told(*groups, ends=[[16, 32], [16, 32]], origins={(1, 32): DISK}, high=32) == {
        "host": 16,
        "disk": 16,
    }
    assert told(*groups, ends=[[16, 32], [16, 32]], origins={(0, 32): DISK}, high=32) == {
        "host": 16,
        "disk": 16,
    }


@pytest.mark.parametrize("promoted", [False, True])
def test_a_group_that_needs_no_key_says_nothing(*, promoted: bool) -> None:
    origins = {(1, 32): DISK} if promoted else None
    groups = (sliding(CHUNK, 16), full(CHUNK))
    found = told(*groups, ends=[[], [16, 32]], origins=origins, high=32)
    assert found == ({"host": 16, "disk": 16} if promoted else {"host": 32})


def test_a_key_inside_a_chunk_stands_for_the_chunk_up_to_it() -> None:
    assert told(full(CHUNK), ends=[[16, 17]], origins={(0, 17): DISK}, high=17) == {
        "host": 16,
        "disk": 1,
    }


def test_a_chunk_that_the_engine_has_in_part_counts_only_as_far_as_it_is_loaded() -> None:
    assert told(
        full(CHUNK), ends=[[16, 32]], origins={(0, 16): DISK}, starts=[8], low=0, high=32
    ) == {"disk": 8, "host": 16, "external_unspecified": 8}
