"""What an engine's configuration makes of its groups (specification, sections 1 to 3)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.scheduler.builders import full, mamba, sliding

from kvoffload_agent.scheduler.geometry import Geometry, GeometryError, ceil_div
from kvoffload_agent.scheduler.types import GroupConfig, GroupKind, SchedulerConfig

EMPTY = "blocks_per_chunk and tokens_per_hash must be at least 1"
NEGATIVE = "sync_load_budget_bytes and block_bytes must not be negative"


def local(block: int, window: int) -> GroupConfig:
    return GroupConfig(kind=GroupKind.CHUNKED_LOCAL, tokens_per_block=block, window=window)


def geometry(*groups: GroupConfig, per_hash: int = 16, **others: int) -> Geometry:
    plain = SchedulerConfig(groups=groups, tokens_per_hash=per_hash)
    return Geometry(replace(plain, **others))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dividend", "divisor", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)]
)
def test_chunks_that_are_begun_count_whole(dividend: int, divisor: int, quotient: int) -> None:
    assert ceil_div(dividend, divisor) == quotient


@pytest.mark.parametrize(
    ("group", "window"),
    [
        (full(16), 0),
        (sliding(16, 32), 2),
        (sliding(16, 33), 3),
        (sliding(16, 33, extra=0), 3),
        (sliding(16, 32, extra=1), 2),  # 31 tokens before the one computed, and one more
        (sliding(16, 32, extra=2), 3),
        (local(16, 40), 3),
        (local(16, 48), 3),
        (mamba(16), 1),
        (mamba(16, align=False), 1),
    ],
)
def test_a_window_is_so_many_chunks(group: GroupConfig, window: int) -> None:
    [found] = geometry(group).groups
    assert (found.window, found.windowed) == (window, group.kind is not GroupKind.FULL)


@pytest.mark.parametrize(
    ("window", "extra", "end", "chunks"),
    [
        (40, 0, 48, 3),
        (40, 0, 39, 3),  # 39 tokens and the 9 that the last chunk lacks: three chunks
        (40, 0, 38, 4),
        (40, 0, 33, 4),
        (40, 0, 32, 3),
        (40, 3, 42, 3),
        (40, 3, 41, 4),
        (17, 0, 1, 2),
        (18, 0, 1, 2),
        (18, 0, 17, 2),
        (19, 0, 17, 3),
        (1, 0, 17, 1),
    ],
)
def test_a_hit_that_ends_inside_a_chunk_needs_history_further_left(
    *, window: int, extra: int, end: int, chunks: int
) -> None:
    [group] = geometry(sliding(16, window, extra=extra)).groups
    assert group.window_at(end) == chunks


@pytest.mark.parametrize(("group", "chunks"), [(local(16, 40), 3), (mamba(16), 1)])
def test_other_windows_are_the_same_wherever_a_hit_ends(group: GroupConfig, chunks: int) -> None:
    [found] = geometry(group).groups
    assert {found.window_at(end) for end in range(1, 50)} == {chunks}


def test_a_chunk_is_so_many_blocks_and_hashes() -> None:
    found = geometry(full(32), sliding(64, 70), blocks_per_chunk=3).groups
    assert [(g.number, g.tokens_per_block, g.chunk, g.stride) for g in found] == [
        (0, 32, 96, 6),
        (1, 64, 192, 12),
    ]
    assert [g.window for g in found] == [0, 1]


def test_groups_are_asked_full_attention_first_then_the_widest_window() -> None:
    found = geometry(sliding(16, 32), full(16), sliding(16, 128), local(16, 64), full(32))
    assert [group.number for group in found.lookup_order] == [1, 4, 2, 3, 0]
    assert [group.number for group in found.windowed] == [2, 3, 0]


@pytest.mark.parametrize(
    ("groups", "alignment"),
    [
        ((full(32), sliding(16, 32)), 32),
        ((full(32), full(32)), 32),
        ((full(32), full(16)), 0),
        ((sliding(16, 32), sliding(48, 96)), 48),
    ],
)
def test_a_hit_ends_at_chunks_of_full_attention(
    groups: tuple[GroupConfig, ...], alignment: int
) -> None:
    assert geometry(*groups).alignment == alignment


@pytest.mark.parametrize(
    ("groups", "per_hash", "margin"),
    [
        ((full(32), sliding(16, 32)), 16, 0),
        ((full(32, eagle=True),), 16, 16),
        ((full(32), sliding(32, 64, eagle=True)), 32, 32),
        ((full(32), sliding(32, 64, eagle=True)), 8, 8),
    ],
)
def test_a_draft_layer_proves_a_hash_less(
    groups: tuple[GroupConfig, ...], per_hash: int, margin: int
) -> None:
    assert geometry(*groups, per_hash=per_hash).eagle_margin == margin


@pytest.mark.parametrize(
    ("groups", "per_hash", "per_chunk", "partial"),
    [
        ((full(64), mamba(64)), 16, 1, True),
        ((full(64), mamba(64)), 64, 1, False),  # nothing is finer than a chunk
        ((full(64), mamba(64)), 16, 2, False),
        ((full(32), mamba(64)), 16, 1, False),  # blocks differ
        ((full(64), mamba(64, align=False)), 16, 1, False),
        ((full(64), mamba(64), sliding(64, 128)), 16, 1, False),
        ((full(64),), 16, 1, False),
    ],
)
def test_tails_inside_a_chunk_need_aligned_states_of_one_block_size(
    *, groups: tuple[GroupConfig, ...], per_hash: int, per_chunk: int, partial: bool
) -> None:
    found = geometry(*groups, per_hash=per_hash, blocks_per_chunk=per_chunk)
    assert found.partial_tail is partial


def test_states_in_align_mode_share_one_chunk() -> None:
    assert geometry(full(16), mamba(64), mamba(64)).mamba_chunk == 64
    assert geometry(full(16), mamba(64, align=False)).mamba_chunk == 0
    with pytest.raises(GeometryError, match=r"align mode have chunks of \[32, 64\]"):
        geometry(mamba(64), mamba(32))


@pytest.mark.parametrize(
    ("groups", "config", "told"),
    [
        ((), {}, "an engine without KV cache groups has nothing to offload"),
        ((full(16),), {"blocks_per_chunk": 0}, EMPTY),
        ((full(16),), {"per_hash": 0}, EMPTY),
        ((full(16),), {"num_workers": 0}, "an engine has at least one worker"),
        ((full(16),), {"sync_load_budget_bytes": -1}, NEGATIVE),
        ((full(16),), {"block_bytes": -1}, NEGATIVE),
        (
            (full(16),),
            {"sync_load_budget_bytes": 1},
            "a budget for synchronous loads needs the bytes of a block",
        ),
        ((full(24),), {}, "blocks of 24 tokens are no multiple of the 16 tokens of a hash"),
        ((full(0),), {}, "blocks of 0 tokens are no multiple of the 16 tokens of a hash"),
        (
            (full(16), sliding(40, 80)),
            {},
            "blocks of 40 tokens are no multiple of the 16 tokens of a hash",
        ),
        (
            (full(16), sliding(32, 64)),
            {"blocks_per_chunk": 2, "retention_interval": 96},
            "a retention interval of 96 tokens is no multiple of the 64 tokens of a chunk",
        ),
        (
            (sliding(16, 64),),
            {"retention_interval": -16},
            "a retention interval of -16 tokens is no multiple of the 16 tokens of a chunk",
        ),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(
    groups: tuple[GroupConfig, ...], config: dict[str, int], told: str
) -> None:
    with pytest.raises(GeometryError) as caught:
        geometry(*groups, **config)
    assert str(caught.value) == told


def test_the_least_that_an_engine_may_have_is_accepted() -> None:
    found = geometry(full(1), per_hash=1, sync_load_budget_bytes=1, block_bytes=1)
    assert (found.alignment, found.sync_budget, found.load_bytes(3)) == (1, 1, 3)


def test_retention_concerns_windows_only() -> None:
    assert geometry(full(16), retention_interval=7).retention == 7
    assert geometry(full(48), sliding(16, 64), retention_interval=32).retention == 32
    assert geometry(sliding(16, 64), retention_interval=0).retention == 0


def test_bytes_of_a_load_are_rounded_up_and_several_groups_have_no_budget() -> None:
    found = geometry(full(16), sync_load_budget_bytes=1000, block_bytes=100)
    assert [found.load_bytes(tokens) for tokens in (0, 1, 16, 17)] == [0, 7, 100, 107]
    several = geometry(full(16), sliding(16, 64), sync_load_budget_bytes=1000, block_bytes=100)
    assert several.sync_budget == 0
