"""When a record was appended, from having looked at the end of its partition."""

from __future__ import annotations

import bisect

from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.waiting import MOST_POINTS, Timeline


def test_a_record_was_appended_when_the_end_passed_it() -> None:
    timeline = Timeline()
    timeline.look(10_000, 1_000)
    timeline.look(20_000, 1_500)
    found = timeline.appended(1_200)
    assert found is not None
    assert found.at_ms == 14_010
    assert found.within_ms == 10_000


def test_nothing_is_known_of_before_the_first_look_nor_of_what_is_not_there() -> None:
    timeline = Timeline()
    assert timeline.appended(0) is None
    timeline.look(10_000, 1_000)
    timeline.look(20_000, 1_500)
    assert timeline.appended(999) is None
    assert timeline.appended(1_500) is None


def test_what_came_after_a_silence_came_after_it() -> None:
    timeline = Timeline()
    for second in range(60):
        timeline.look(second * 1000, 7)
    timeline.look(60_000, 8)
    found = timeline.appended(7)
    assert found is not None
    assert 59_000 <= found.at_ms <= 60_000


def test_a_topic_that_was_made_again_has_no_past() -> None:
    timeline = Timeline()
    timeline.look(1_000, 500)
    timeline.look(2_000, 600)
    timeline.look(3_000, 10)
    assert timeline.appended(550) is None
    timeline.look(4_000, 20)
    assert timeline.appended(15) is not None


def test_a_record_that_was_read_reaches_further_back() -> None:
    timeline = Timeline()
    timeline.look(100_000, 1_000)
    timeline.look(110_000, 1_100)
    timeline.read(500, 50_000)
    found = timeline.appended(750)
    assert found is not None
    assert 50_000 <= found.at_ms <= 100_000
    assert found.within_ms == 50_000


def test_a_timestamp_that_contradicts_what_was_seen_is_not_believed() -> None:
    timeline = Timeline()
    timeline.look(100_000, 1_000)
    timeline.look(110_000, 1_100)
    before = timeline.appended(1_050)
    timeline.read(1_040, 5_000)
    timeline.read(1_060, 900_000)
    assert timeline.appended(1_050) == before


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 50)), min_size=2, max_size=300))
def test_an_answer_is_right_within_what_it_says_and_the_timeline_stays_small(moves: list[tuple[int, int]]) -> None:
    """Against the truth: records appended one by one, at known times, between looks at other times."""
    timeline = Timeline()
    appended_ms: list[int] = []
    now_ms = 0
    timeline.look(now_ms, 0)
    for pause_ms, count in moves:
        appended_ms += [now_ms + pause_ms * (number + 1) // (count + 1) for number in range(count)]
        now_ms += pause_ms
        timeline.look(now_ms, len(appended_ms))
    for pointer, truth_ms in enumerate(appended_ms):
        found = timeline.appended(pointer)
        assert found is not None
        assert abs(found.at_ms - truth_ms) <= found.within_ms + 1
        after_ms, before_ms = timeline.bounds_ms(pointer)
        assert after_ms is not None
        assert before_ms is not None
        assert after_ms <= truth_ms <= before_ms
    assert len(timeline._points) <= MOST_POINTS
    assert bisect.bisect_left(appended_ms, now_ms + 1) == len(appended_ms)
