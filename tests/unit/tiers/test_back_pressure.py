"""A tier that cannot keep up is offered fewer stores (6.10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvoffload_agent.tiers.backpressure import BackPressure, Marks

MIB = 1 << 20


def fed(seconds: float, count: int = 10) -> BackPressure:
    pressure = BackPressure()
    for _ in range(count):
        pressure.completed(size=MIB, seconds=seconds, now=0.0)
    return pressure


@pytest.mark.parametrize(
    ("seconds", "rate"), [(0.010, 0.0), (0.020, 0.5), (0.030, 1.0), (9.0, 1.0)]
)
def test_the_rate_grows_from_the_high_mark_on(seconds: float, rate: float) -> None:
    assert fed(seconds).rate(0.0) == pytest.approx(rate)


def test_nothing_is_dropped_before_ten_completions() -> None:
    assert fed(9.0, 9).rate(0.0) == 0
    assert fed(9.0, 10).rate(0.0) == 1


def test_an_idle_tier_recovers_and_cools_down_for_a_second() -> None:
    pressure = fed(0.016)
    assert pressure.rate(2.0) == 0
    assert pressure.pressed
    assert pressure.rate(6.5) == 0.5
    assert not pressure.pressed
    assert pressure.rate(7.6) == 0


def test_three_failures_in_a_row_are_pressure() -> None:
    pressure = BackPressure()
    pressure.failed(now=0.0)
    pressure.failed(now=0.0)
    assert pressure.rate(0.0) == 0
    pressure.failed(now=0.0)
    assert pressure.rate(0.0) == 1


def test_marks_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ValueError, match="low <= high"):
        Marks(high=0.001, low=0.002)


@given(st.floats(0.0101, 0.2), st.integers(1, 200))
def test_over_many_stores_the_rate_is_what_is_dropped(seconds: float, count: int) -> None:
    pressure = fed(seconds)
    rate = pressure.rate(0.0)
    assert 0 <= rate <= 1
    assert abs(sum(pressure.drops(0.0) for _ in range(count)) - rate * count) <= 1.0001


def test_the_first_ten_stores_count_as_their_mean() -> None:
    pressure = BackPressure()
    pressure.completed(size=MIB, seconds=0.09, now=0.0)
    for _ in range(9):
        pressure.completed(size=MIB, seconds=0.0, now=0.0)
    assert pressure.ema == pytest.approx(0.009)
    assert not pressure.drops(0.0)
    pressure.completed(size=MIB, seconds=1.009, now=0.0)
    assert pressure.ema == pytest.approx(0.009 + 0.15)


def test_rare_stores_are_remembered_as_long_as_none_is_dropped() -> None:
    pressure = BackPressure()
    for at in range(10):
        pressure.completed(size=MIB, seconds=0.02, now=60.0 * at)
    assert pressure.drops(540.0) is False
    assert pressure.drops(540.0) is True
