"""Which of its tokens a request may store, and when another chunk of them is due."""

from __future__ import annotations

import pytest
from tests.unit.scheduler.builders import full, hashes_of, sliding

from kvoffload_agent.scheduler.geometry import Geometry
from kvoffload_agent.scheduler.request import RequestState, positions
from kvoffload_agent.scheduler.types import GroupConfig, RequestCaps, SchedulerConfig
from kvoffload_agent.tiers.pool import PartitionPool

NEVER = 1 << 40


def request(
    *groups: GroupConfig,
    tokens: int,
    prompt: int | None = None,
    cap: int | None = None,
    prompt_only: bool = False,
) -> RequestState:
    state = RequestState(
        handle=1,
        geometry=Geometry(SchedulerConfig(groups=groups, tokens_per_hash=16)),
        pool_request=PartitionPool().open(),
        caps=RequestCaps(max_offload_tokens=cap, prompt_only=prompt_only),
        num_prompt=tokens if prompt is None else prompt,
        skip_reading=False,
    )
    state.grow(tokens, hashes_of(0, tokens // 16))
    return state


def test_a_request_begins_with_nothing_computed_promised_loaded_or_stored() -> None:
    state = RequestState(
        handle=1,
        geometry=Geometry(SchedulerConfig(groups=[full(16)], tokens_per_hash=16)),
        pool_request=PartitionPool().open(),
        caps=RequestCaps(),
        num_prompt=40,
        skip_reading=False,
    )
    assert (state.num_tokens, state.local, state.computed_at_end) == (0, 0, 0)
    assert (state.promised, state.tail, state.sync, state.loaded) == (0, 0, False, False)
    assert (state.next_store, state.wake_at, state.refused) == ([0], 0, None)
    assert (state.status, state.closed) == ("", False)


@pytest.mark.parametrize(
    ("stored", "cap", "due"),
    [
        ([0, 0], None, 32),
        ([2, 0], None, 64),
        ([1, 0], None, 64),
        ([3, 1], None, 128),
        ([0, 0], 32, 32),
        ([0, 0], 31, NEVER),
        ([2, 1], 100, 96),
        ([2, 1], 95, NEVER),
    ],
)
def test_a_request_sleeps_until_a_chunk_of_any_group_is_full(
    *, stored: list[int], cap: int | None, due: int
) -> None:
    state = request(full(32), sliding(64, 64), tokens=16, cap=cap)
    state.next_store = stored
    state.sleep()
    assert min(state.wake_at, NEVER) == due


def test_a_prompt_that_is_stored_sleeps_for_good_where_only_prompts_are() -> None:
    state = request(full(16), tokens=40, prompt=40, prompt_only=True)
    state.next_store = [1]
    state.sleep()
    assert state.wake_at == 32
    state.next_store = [2]
    state.sleep()
    assert state.wake_at > NEVER


@pytest.mark.parametrize(
    ("cap", "prompt_only", "storable"),
    [(None, False, 40), (None, True, 30), (20, False, 20), (20, True, 20), (35, True, 30)],
)
def test_no_cap_is_exceeded_and_no_token_stored_that_is_not_there(
    *, cap: int | None, prompt_only: bool, storable: int
) -> None:
    state = request(full(16), tokens=40, prompt=30, cap=cap, prompt_only=prompt_only)
    assert state.storable_tokens(100) == storable
    assert state.storable_tokens(10) == 10


def test_a_key_is_known_up_to_the_last_full_hash() -> None:
    state = request(full(16), tokens=40)
    first, second = hashes_of(0, 2)
    assert [state.key_at(at) for at in (0, 15, 16, 31, 32, 47, 48, 64)] == [
        None,
        None,
        first,
        first,
        second,
        second,
        None,
        None,
    ]


def test_a_chunk_is_named_by_the_last_of_its_hashes_however_they_arrive() -> None:
    state = request(full(48), full(16), tokens=16)
    hashes = hashes_of(0, 7)
    for upto in (2, 3, 7):
        state.grow(upto * 16, hashes[len(state.hashes) : upto])
    assert state.keys == [[hashes[2], hashes[5]], hashes]


@pytest.mark.parametrize(("first", "count", "ends"), [(0, 2, [32, 64]), (3, 1, [128]), (5, 0, [])])
def test_chunks_end_at_multiples_of_their_size(first: int, count: int, ends: list[int]) -> None:
    [group] = Geometry(SchedulerConfig(groups=[full(32)], tokens_per_hash=16)).groups
    assert positions(group, first, count).tolist() == ends


@pytest.mark.parametrize(
    ("status", "prompt", "written"),
    [("stopped", 30, 39), ("stopped", 40, 40), ("aborted", 30, 17)],
)
def test_the_last_token_sampled_was_never_computed(
    *, status: str, prompt: int, written: int
) -> None:
    state = request(full(16), tokens=40, prompt=prompt)
    state.status, state.computed_at_end = status, 17
    assert state.tokens_at_end == written


def test_a_request_that_begins_anew_is_offered_whole() -> None:
    state = request(full(16), sliding(16, 32), tokens=40)
    state.next_store, state.refused = [2, 1], (1,)
    state.blocks = [[1, 2], [3]]
    state.sleep()
    state.reset_cursor()
    assert (state.next_store, state.blocks, state.wake_at) == ([0, 0], [[], []], 0)
    assert state.refused is None
