"""Of what a request observed, the end leaves first (specification 6.5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvoffload_agent.tiers.policy.base import KeyRun, Scratch
from kvoffload_agent.tiers.slots import Slots

A, B, C, D = b"a", b"b", b"c", b"d"


def find(group: int, hashes: Sequence[bytes]) -> Slots:
    """Slots that name their key: the hundreds are the group."""
    return np.array([100 * group + key[0] for key in hashes], dtype=np.int64)


def leaves(*runs: tuple[int, dict[bytes, int]]) -> list[tuple[int, bytes]]:
    """Return (group, key), first to leave first; position -1 is one that is not known."""
    scratch = Scratch()
    for group, table in runs:
        scratch.add(
            KeyRun(group=group, hashes=list(table), positions=np.array(list(table.values()))),
            np.ones(len(table), dtype=np.bool_),
        )
    slots, keys = scratch.last_to_first(find)
    assert slots.tolist() == [100 * group + key[0] for group, key in keys]
    return keys


def test_the_last_position_leaves_first_in_whatever_order_they_were_observed() -> None:
    assert leaves((0, {B: 32, D: 64, A: 16, C: 48})) == [(0, D), (0, C), (0, B), (0, A)]


def test_groups_are_merged_by_position_where_all_are_known() -> None:
    observed = leaves((0, {A: 16, B: 48}), (1, {C: 32, D: 64}))
    assert observed == [(1, D), (0, B), (1, C), (0, A)]


def test_of_equal_positions_the_higher_group_leaves_first() -> None:
    many = {bytes([at]): 16 * at for at in range(1, 40)}
    observed = leaves((2, many), (0, many), (1, many))
    assert observed == [(group, bytes([at])) for at in range(39, 0, -1) for group in (2, 1, 0)]


def test_groups_stay_apart_where_one_position_is_not_known() -> None:
    observed = leaves((0, {A: 64, B: 32}), (1, {C: -1, D: 16}))
    # Known ones of group 0 by position, those of group 1 as observed.
    assert observed == [(1, D), (1, C), (0, A), (0, B)]


def test_one_group_without_positions_leaves_as_it_was_observed() -> None:
    assert leaves((0, {C: -1, A: -1, B: 16})) == [(0, B), (0, A), (0, C)]


def test_nothing_observed_is_nothing_to_leave() -> None:
    slots, keys = Scratch().last_to_first(find)
    assert (slots.tolist(), keys) == ([], [])


def test_a_key_counts_where_it_was_observed_first() -> None:
    scratch = Scratch()
    everything = np.ones(2, dtype=np.bool_)
    first = KeyRun(group=0, hashes=[A, B], positions=np.array([16, 32]))
    again = KeyRun(group=0, hashes=[B, C], positions=np.array([48, 64]))
    assert scratch.add(first, everything).tolist() == [True, True]
    assert scratch.add(again, everything).tolist() == [False, True]
    assert scratch.observed == {0: {A: 16, B: 32, C: 64}}


def test_a_key_that_does_not_count_is_not_remembered() -> None:
    scratch = Scratch()
    run = KeyRun(group=0, hashes=[A, B, C], positions=None)
    assert scratch.add(run, np.array([True, False, True])).tolist() == [True, False, True]
    assert scratch.observed == {0: {A: -1, C: -1}}


def test_a_reset_forgets_every_trace_of_a_request() -> None:
    scratch = Scratch(
        epoch=1,
        rank=3,
        observed={0: {A: 16}},
        inserted={0: {A}},
        reused={0: {B}},
        missed={0: {C}},
    )
    scratch.enter(1)
    assert scratch.rank == 3
    assert scratch.observed == {0: {A: 16}}
    scratch.enter(2)
    assert scratch == Scratch(epoch=2)
