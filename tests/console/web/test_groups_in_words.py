"""How a group's prospects are put into words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.console.web.pages.group_words import forecast, incoming_per_s, loss_tone, spark
from penstock.console.web.pages.groups import position_text
from penstock.observe.facts import GroupFacts, PartitionFacts, ReaderFacts, Snapshot, TopicFacts

READER = ReaderFacts("g", "orders", 0, committed=100, start=0, end=1_100, lag_s=40.0)
GROUP = GroupFacts("g", "stable", 1, (READER,), rate_per_s=120.0)


@pytest.mark.parametrize(
    ("group", "coming", "text", "tone"),
    [
        (
            replace(GROUP, is_growing=True, readers=(replace(READER, time_to_loss_s=11_520.0),)),
            150.0,
            "Reads 120/s, 150/s come in: the lag grows; retention overtakes it in 3 h 12 min.",
            "warn",
        ),
        (
            replace(GROUP, time_to_drain_s=50.0),
            100.0,
            "Reads 120/s, 100/s come in: it will have caught up in 50 s.",
            "plain",
        ),
        (GROUP, None, "Its read rate is not known yet: that takes two looks.", "plain"),
        (replace(GROUP, readers=(replace(READER, committed=1_100),)), 5.0, "It has read everything.", "good"),
        (
            replace(GROUP, members=0, readers=(replace(READER, time_to_loss_s=600.0),)),
            150.0,
            "Nobody reads: it has no members. 150/s come in; retention overtakes it in 10 min.",
            "bad",
        ),
        (replace(GROUP, readers=()), None, "It has committed nothing and reads no partition.", "plain"),
        (
            replace(GROUP, readers=(replace(READER, committed=0, start=100, lost=100),)),
            None,
            "Its read rate is not known yet: that takes two looks. 100 records expired before it read them.",
            "bad",
        ),
    ],
)
def test_what_becomes_of_the_lag_is_said_in_a_sentence(
    group: GroupFacts, coming: float | None, text: str, tone: str
) -> None:
    assert forecast(group, coming) == (text, tone)


def test_what_comes_in_is_known_when_it_is_known_of_every_topic() -> None:
    topics = {
        name: TopicFacts(name, (PartitionFacts(name, 0, 0, 9),), rate_per_s=rate)
        for name, rate in (("orders", 3.0), ("events", 4.0), ("new", None))
    }
    both = replace(GROUP, readers=(READER, replace(READER, topic="events")))
    assert incoming_per_s(both, Snapshot(1, topics)) == 7.0
    assert incoming_per_s(replace(both, readers=(READER, replace(READER, topic="new"))), Snapshot(1, topics)) is None


def test_loss_within_the_hour_is_bad_and_within_six_a_warning() -> None:
    assert [loss_tone(each) for each in (None, 90_000.0, 20_000.0, 3_600.0)] == ["plain", "plain", "warn", "bad"]


def test_a_trend_stays_in_its_box_and_needs_two_points() -> None:
    assert spark([(0, 5.0)]) == ""
    points = [tuple(map(float, each.split(","))) for each in spark([(0, 0.0), (50, 10.0), (100, 5.0)]).split()]
    assert [across for across, _ in points] == [0, 50, 100]
    assert all(0 <= down <= 24 for _, down in points)
    assert points[1][1] < points[2][1] < points[0][1], "what is higher is drawn higher"


@pytest.mark.parametrize(
    ("choice", "value", "text"),
    [
        ("earliest", "", "earliest"),
        ("time", "2026-11-15T08:00", "2026-11-15T08:00+00:00"),
        ("age", "15m", "-15m"),
        ("age", "-15m", "-15m"),
        ("pointer", " 42 ", "42"),
        ("shift", "100", "+100"),
        ("shift", "-100", "-100"),
        ("shift", "", ""),
    ],
)
def test_what_is_chosen_is_written_as_the_service_reads_it(choice: str, value: str, text: str) -> None:
    assert position_text(choice, value) == text
