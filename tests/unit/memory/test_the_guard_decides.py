"""Admit, Shrink or Refuse: laws of the pure decision."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.memory.guard import (
    MIN_MARGIN_BYTES,
    Admit,
    Refuse,
    Shrink,
    Verdict,
    decide,
    level_headroom,
    margin,
)
from kvoffload_agent.memory.snapshot import Level, Snapshot

MIB = 1 << 20
GIB = 1 << 30

sizes = st.integers(min_value=0, max_value=64 * GIB)
levels = st.builds(
    Level,
    path=st.just("/a"),
    version=st.sampled_from([1, 2]),
    limit=st.none() | sizes,
    usage=sizes,
    inactive_file=sizes,
)
snapshots = st.builds(
    Snapshot,
    levels=st.lists(levels, max_size=4).map(tuple),
    available=sizes,
    total=st.just(64 * GIB),
    explicit_limit=st.none() | sizes,
    resident=sizes,
)
wishes = st.integers(min_value=1, max_value=128 * GIB)


def allowed(verdict: Verdict) -> int:
    return 0 if isinstance(verdict, Refuse) else verdict.bytes


@given(snapshot=snapshots, wanted=wishes, budget=st.none() | sizes)
def test_no_answer_passes_a_limit_less_its_margin(
    snapshot: Snapshot, wanted: int, budget: int | None
) -> None:
    answer = allowed(decide(snapshot, wanted, budget))
    assert answer <= wanted
    assert budget is None or answer <= budget
    for level in snapshot.bounds():
        assert level.limit is not None
        reclaimable = min(level.usage, level.inactive_file)
        if answer:
            assert answer <= level.limit - (level.usage - reclaimable) - margin(level.limit)


@given(snapshot=snapshots, wanted=wishes, budget=sizes, less=sizes)
def test_a_smaller_budget_never_allows_more(
    snapshot: Snapshot, wanted: int, budget: int, less: int
) -> None:
    smaller = max(0, budget - less)
    assert allowed(decide(snapshot, wanted, smaller)) <= allowed(decide(snapshot, wanted, budget))


@given(snapshot=snapshots, extra=levels, wanted=wishes)
def test_one_more_ancestor_never_allows_more(snapshot: Snapshot, extra: Level, wanted: int) -> None:
    more = replace(snapshot, levels=(*snapshot.levels, extra))
    assert allowed(decide(more, wanted, None)) <= allowed(decide(snapshot, wanted, None))


@given(snapshot=snapshots, wanted=wishes, budget=st.none() | sizes)
def test_what_a_shrink_answer_allows_is_then_admitted(
    snapshot: Snapshot, wanted: int, budget: int | None
) -> None:
    verdict = decide(snapshot, wanted, budget)
    if isinstance(verdict, Shrink):
        assert 0 < verdict.bytes < wanted
        assert isinstance(decide(snapshot, verdict.bytes, budget), Admit)


@given(snapshot=snapshots, wanted=st.integers(max_value=0))
def test_nothing_or_less_is_refused(snapshot: Snapshot, wanted: int) -> None:
    assert isinstance(decide(snapshot, wanted, None), Refuse)


def one(*, limit: int, usage: int = 0, inactive_file: int = 0) -> Snapshot:
    level = Level(path="/a", version=2, limit=limit, usage=usage, inactive_file=inactive_file)
    return Snapshot(levels=(level,), available=100 * GIB, total=100 * GIB)


def test_equality_is_enough() -> None:
    free = (512 - 64) * MIB
    payload = free * 512 // 513
    assert isinstance(decide(one(limit=512 * MIB), payload, None), Admit)
    assert isinstance(decide(one(limit=512 * MIB), payload + 1, None), Shrink)


def test_page_cache_that_fills_the_group_does_not_make_it_refuse() -> None:
    full = one(limit=512 * MIB, usage=511 * MIB, inactive_file=400 * MIB)
    verdict = decide(full, 32 * MIB, None)
    assert isinstance(verdict, Admit)


def test_near_the_limit_only_half_of_the_cache_counts() -> None:
    thin = Level(path="/a", version=1, limit=512 * MIB, usage=500 * MIB, inactive_file=300 * MIB)
    assert level_headroom(thin) == (512 - (500 - 150) - 64) * MIB
    roomy = Level(path="/a", version=1, limit=512 * MIB, usage=400 * MIB, inactive_file=300 * MIB)
    assert level_headroom(roomy) == (512 - 100 - 64) * MIB


def test_the_margin_is_64_mib_or_2_percent() -> None:
    assert margin(GIB) == MIN_MARGIN_BYTES == 64 * MIB
    assert margin(100 * GIB) == 2 * GIB


def test_a_refusal_names_bytes_and_limit() -> None:
    verdict = decide(one(limit=64 * MIB, usage=10 * MIB), 2 * GIB, None)
    assert isinstance(verdict, Refuse)
    assert str(2 * GIB) in verdict.reason
    assert "/a" in verdict.reason


def test_an_exhausted_budget_is_named_as_the_reason() -> None:
    verdict = decide(one(limit=4 * GIB), MIB, 0)
    assert isinstance(verdict, Refuse)
    assert verdict.limited_by == "policy budget"
