"""What is told of groups, look after look, on a stream that the test makes up and a clock that it turns."""

from __future__ import annotations

import pytest

from penstock.observe.facts import GroupFacts
from penstock.observe.library_groups import LibraryGroup
from penstock.testing.clock import VirtualClock
from tests.observe.fake_survey import FakeStream

HOUR_S = 3600


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def told(stream: FakeStream, name: str = "billing") -> GroupFacts:
    return stream.look()[1][name]


def run(stream: FakeStream, clock: VirtualClock, looks: int, *, comes: int, reads: int, name: str = "billing") -> None:
    """Let records come and be read, so many a second, for so many looks that are five seconds apart."""
    for _ in range(looks):
        clock.advance(5)
        stream.end += 5 * comes
        stream.committed[name] = min(stream.end, stream.committed[name] + 5 * reads)
        stream.look()


def test_lag_in_seconds_is_how_long_ago_the_end_passed_the_reader(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.members["billing"] = 1
    stream.committed["billing"] = 0
    stream.look()
    run(stream, clock, 12, comes=100, reads=80)
    group = told(stream)
    # In 60 s, 6,000 have come and 4,800 were read: the next was appended 12 s ago.
    assert (group.lag, group.is_growing, group.time_to_drain_s) == (1_200, True, None)
    assert group.lag_s == pytest.approx(12, abs=0.1)
    assert group.rate_per_s == pytest.approx(80)


def test_who_reads_faster_than_records_come_will_have_caught_up(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.members["billing"] = 1
    stream.committed["billing"], stream.end = 0, 10_000
    stream.look()
    run(stream, clock, 6, comes=100, reads=150)
    group = told(stream)
    assert group.lag == 10_000 - 30 * 50
    assert group.time_to_drain_s == pytest.approx(group.lag / 50)
    assert not group.is_growing


def test_the_commits_of_a_reader_that_keeps_up_are_no_growth(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.members["billing"] = 1
    stream.committed["billing"] = 0
    for look in range(20):
        clock.advance(5)
        stream.end += 500
        if look % 3 == 2:
            stream.committed["billing"] = stream.end - 7
        assert not told(stream).is_growing or look < 3


def test_a_record_from_before_the_first_look_is_read_once_to_learn_its_time(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.committed["billing"], stream.end = 40, 100
    stream.times = {40: clock.wall_ms() - 7_200_000}
    assert told(stream).lag_s == 7_200
    clock.advance(60)
    assert told(stream).lag_s == 7_260
    assert stream.reads == 1


def test_marks_of_transactions_behind_the_last_record_are_nothing_to_wait_for(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": "60000"})
    stream.members["billing"] = 1
    stream.committed["billing"], stream.end = 99, 100
    stream.times = {98: clock.wall_ms()}
    for _ in range(3):
        group = told(stream)
        clock.advance(600)
    assert group.lag_s == 0
    assert group.time_to_loss_s is None
    stream.times = {100: clock.wall_ms()}
    stream.end = 101
    clock.advance(5)
    stream.look()
    clock.advance(5)
    assert (told(stream).lag_s or 0) > 0, "a record has come behind the mark"


def test_a_record_that_waits_on_an_idle_topic_ages_and_is_lost_in_the_end(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": str(HOUR_S * 1000)})
    stream.members["billing"] = 1
    stream.committed["billing"], stream.end = 99, 100
    stream.times = {99: clock.wall_ms()}
    assert told(stream).time_to_loss_s is None, "after one look nobody knows whether it moves"
    clock.advance(600)
    assert told(stream).time_to_loss_s == pytest.approx(HOUR_S - 600)


def test_a_group_that_nobody_is_in_stands_still_from_the_first_look_on(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": str(HOUR_S * 1000)})
    stream.committed["billing"], stream.end = 99, 100
    stream.times = {99: clock.wall_ms() - 1_000_000}
    assert told(stream).time_to_loss_s == pytest.approx(HOUR_S - 1_000)


def test_records_that_expired_unread_are_lost_and_more_are_being_lost(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": "1000"})
    stream.committed["billing"], stream.start, stream.end = 10, 25, 100
    group = told(stream)
    assert (group.lost, group.lag, group.time_to_loss_s) == (15, 75, 0)
    stream.start = 100
    group = told(stream)
    assert (group.lost, group.lag, group.lag_s, group.time_to_loss_s) == (90, 0, 0, None), "there is no more to lose"


def test_a_compacted_topic_takes_nothing_from_a_slow_reader(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": "1000", "cleanup.policy": "compact"})
    stream.committed["billing"], stream.end = 0, 100
    stream.times = {30: clock.wall_ms() - 3_600_000}
    group = told(stream)
    assert group.time_to_loss_s is None
    assert group.lag_s == 3_600, "the first record that compaction has left counts"


def test_a_reset_says_nothing_about_how_fast_a_group_reads(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.committed["billing"], stream.end = 0, 1_000_000
    stream.look()
    clock.advance(5)
    stream.committed["billing"] = 1_000_000
    assert told(stream).rate_per_s is None, "moved on, with nobody in it"
    stream.members["billing"] = 1
    for _ in range(3):
        clock.advance(5)
        stream.look()
    clock.advance(5)
    stream.committed["billing"] = 500
    assert told(stream).rate_per_s is None, "moved back"
    assert told(stream).time_to_drain_s is None


def test_a_topic_that_was_made_again_makes_no_sense_of_the_past(clock: VirtualClock) -> None:
    stream = FakeStream(clock, {"retention.ms": "3600000"})
    stream.members["billing"] = 1
    stream.committed["billing"], stream.end = 900, 1_000
    run(stream, clock, 4, comes=10, reads=10)
    stream.end = 3
    clock.advance(5)
    topic, groups = stream.look()
    assert topic.rate_per_s is None
    assert (groups["billing"].lag, groups["billing"].lag_s, groups["billing"].lost) == (0, 0, 0)


def test_the_pace_of_the_start_stands_in_for_settings_that_nobody_tells(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.config = None
    stream.members["billing"] = 1
    stream.committed["billing"], stream.end = 5_000, 100_000
    for _ in range(6):  # the start moves by 100 a second, the reader by 20
        stream.look()
        clock.advance(10)
        stream.start += 1_000
        stream.end += 1_000
        stream.committed["billing"] += 200
    group = told(stream)
    distance = stream.committed["billing"] - stream.start
    assert group.time_to_loss_s == pytest.approx(distance / 80, rel=0.01)


def test_the_checkpoint_decides_how_far_a_group_of_the_library_is(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.committed["billing"], stream.end = 90, 100
    stream.library = {"billing": LibraryGroup({("orders", 0): 70}), "leased": LibraryGroup({("orders", 0): 60}, {}, 2)}
    groups = stream.look()[1]
    assert (groups["billing"].is_library, groups["billing"].lag) == (True, 30)
    assert (groups["leased"].state, groups["leased"].members, groups["leased"].lag) == ("stable", 2, 40)


def test_few_records_are_read_at_one_look_and_all_have_their_turn(clock: VirtualClock) -> None:
    stream = FakeStream(clock)
    stream.end = 1_000
    for number in range(40):
        stream.committed[f"group-{number}"] = number
        stream.times[number] = clock.wall_ms() - 1_000 * (140 - number)
    stream.look()
    assert stream.reads == 1, "of one partition only one record is read at a time"
    for _ in range(45):
        clock.advance(1)
        groups = stream.look()[1]
    for number in range(40):
        assert groups[f"group-{number}"].lag_s == 45 + 140 - number
