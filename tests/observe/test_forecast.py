"""Rates, trends, and when a reader will have caught up, or lost something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe import forecast
from penstock.observe.forecast import Sample

offsets = st.integers(0, 2**62)
times = st.integers(0, 2**45)
anything = st.one_of(st.none(), st.floats(-1e12, 1e12))
samples = st.lists(st.tuples(times, st.integers(0, 2**40).map(float)), max_size=12)


def test_a_rate_is_what_was_added_by_the_time_that_it_took() -> None:
    assert forecast.rate_per_s([(0, 500), (4_000, 700), (10_000, 1_500)]) == 100


def test_one_look_says_nothing_about_a_rate() -> None:
    assert forecast.rate_per_s([]) is None
    assert forecast.rate_per_s([(0, 500)]) is None


def test_a_topic_that_was_made_again_counts_from_then_on() -> None:
    assert forecast.rate_per_s([(0, 9_000), (1_000, 9_100), (2_000, 0), (4_000, 20)]) == 10
    assert forecast.rate_per_s([(0, 9_000), (1_000, 0)]) is None


def test_a_clock_that_was_set_back_does_not_make_a_rate() -> None:
    assert forecast.rate_per_s([(10_000, 0), (5_000, 100)]) is None
    assert forecast.rate_per_s([(10_000, 0), (5_000, 100), (6_000, 150)]) == 50


def test_the_teeth_of_a_saw_are_no_trend() -> None:
    saw = [(second * 1000, float(10 + 100 * (second % 5))) for second in range(20)]
    assert forecast.trend_per_s(saw) == 0


def test_what_grows_steadily_has_its_growth_as_trend() -> None:
    steady = [(second * 1000, 7.0 + 3 * second) for second in range(13)]
    assert forecast.trend_per_s(steady) == pytest.approx(3)
    shrinking = [(second * 1000, 700.0 - 3 * second) for second in range(13)]
    assert forecast.trend_per_s(shrinking) == pytest.approx(-3)


def test_the_example_of_the_module() -> None:
    assert forecast.time_to_drain_s(18_000, 20.0) is None
    assert forecast.time_to_drain_s(18_000, -10.0) == 1_800
    assert forecast.loss_by_age_s(180.0, 0.2, 3_600_000) == pytest.approx(17_100)
    assert forecast.loss_by_size_s(18_000, 20.0, 1_000.0, 50_000_000) == pytest.approx(1_600)
    assert forecast.loss_by_pace_s(6_000, 100.0, 80.0) == pytest.approx(300)


def test_who_has_read_everything_is_done() -> None:
    assert forecast.time_to_drain_s(0, None) == 0
    assert not forecast.is_growing(0, 5.0, 5.0)


def test_a_reader_that_stands_still_loses_its_record_when_that_is_as_old_as_the_topic_keeps_it() -> None:
    assert forecast.loss_by_age_s(600.0, 1.0, 3_600_000) == 3_000


def test_nothing_is_lost_by_who_catches_up_or_where_everything_is_kept() -> None:
    assert forecast.loss_by_age_s(600.0, -0.5, 3_600_000) is None
    assert forecast.loss_by_age_s(600.0, 1.0, None) is None
    assert forecast.loss_by_age_s(600.0, 1.0, -1) is None
    assert forecast.loss_by_size_s(10, 5.0, 100.0, None) is None
    assert forecast.loss_by_size_s(10, -5.0, 100.0, 10_000) is None
    assert forecast.loss_by_pace_s(100, 5.0, 5.0) is None


def test_what_is_too_old_or_too_much_already_may_go_any_moment() -> None:
    assert forecast.loss_by_age_s(7_200.0, -1.0, 3_600_000) == 0
    assert forecast.loss_by_size_s(1_000, -1.0, 100.0, 50_000) == 0


def test_a_reset_to_an_earlier_place_does_not_age_records_faster_than_time() -> None:
    assert forecast.loss_by_age_s(600.0, 50.0, 3_600_000) == 3_000


def test_the_soonest_loss_counts() -> None:
    assert forecast.soonest_s([None, 30.0, 20.0]) == 20
    assert forecast.soonest_s([None, None]) is None


@given(samples)
def test_a_rate_is_never_below_zero_whatever_is_seen(seen: list[Sample]) -> None:
    rate = forecast.rate_per_s(seen)
    assert rate is None or rate >= 0


@given(samples)
def test_a_trend_is_between_the_steepest_ways_there_are(seen: list[Sample]) -> None:
    seen = sorted({at: (at, value) for at, value in seen}.values())
    trend = forecast.trend_per_s(seen)
    if trend is None:
        assert len(seen) < 2
        return
    slopes = [
        (later - earlier) / (later_ms - earlier_ms) * 1000
        for earlier_ms, earlier in seen
        for later_ms, later in seen
        if later_ms > earlier_ms
    ]
    assert min(slopes) <= trend <= max(slopes)


@given(st.integers(0, 2**60), anything, anything, st.one_of(st.none(), st.integers(-1, 2**60)))
def test_no_forecast_is_in_the_past(lag: int, trend: float | None, size: float | None, kept: int | None) -> None:
    record_bytes = None if size is None else abs(size)
    age_s = None if size is None else abs(size)
    for time_s in (
        forecast.time_to_drain_s(lag, trend),
        forecast.loss_by_age_s(age_s, trend, kept),
        forecast.loss_by_size_s(lag, trend, record_bytes, kept),
        forecast.loss_by_pace_s(lag, trend, size),
    ):
        assert time_s is None or time_s >= 0


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**4), st.integers(2, 12))
def test_a_steady_reader_drains_when_arithmetic_says_so(lag: int, reads: int, comes: int, looks: int) -> None:
    """A reader and a producer at steady paces, looked at every second: the lag is gone when it really would be."""
    seen = [(second * 1000, float(max(0, lag + (comes - reads) * second))) for second in range(looks)]
    left = int(seen[-1][1])
    drain_s = forecast.time_to_drain_s(left, forecast.trend_per_s(seen))
    if left == 0:
        assert drain_s == 0
    elif comes >= reads:
        assert drain_s is None
    else:
        assert drain_s == pytest.approx(left / (reads - comes))
