"""Windows are where the clock says, and a time is the one that was meant."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.durations import interval, microseconds
from penstock.spark.windows import append_time, event_time, hopping, processing_time, session, sliding, tumbling
from tests.spark.time.batches import START, Batches, Collected, seconds

TIMES = [0.0, 3.5, 9.999, 10, 12, 40]


def windows_of(spark: SparkSession, window: Column, name: str = "window") -> dict[tuple[float, float], int]:
    rows = [(START + datetime.timedelta(seconds=time), "k") for time in TIMES]
    frame = spark.createDataFrame(rows, "at timestamp, key string")
    found = frame.groupBy(window, "key").count().collect()
    return {(seconds(row[name].start), seconds(row[name].end)): row["count"] for row in found}


def by_hand(size: float, every: float, offset: float = 0) -> dict[tuple[float, float], int]:
    starts = [offset + every * n for n in range(-100, 100)]
    held = {(start, start + size): sum(start <= time < start + size for time in TIMES) for start in starts}
    return {window: count for window, count in held.items() if count}


def test_windows_hold_the_events_between_their_start_and_their_end(spark: SparkSession) -> None:
    assert windows_of(spark, tumbling("at", "10 seconds")) == by_hand(10, 10)
    assert windows_of(spark, tumbling("at", "10 seconds", offset="3 seconds")) == by_hand(10, 10, 3)
    assert windows_of(spark, hopping("at", "10 seconds", "5 seconds")) == by_hand(10, 5)
    assert windows_of(spark, sliding("at", datetime.timedelta(seconds=2), "500 milliseconds")) == by_hand(2, 0.5)


def test_a_session_ends_after_a_gap(spark: SparkSession) -> None:
    assert windows_of(spark, session("at", "5 seconds"), "session_window") == {(0, 8.5): 2, (9.999, 17): 3, (40, 45): 1}


@pytest.mark.parametrize(
    ("text", "length_us"),
    [
        ("10 seconds", 10_000_000),
        ("1 second", 1_000_000),
        ("INTERVAL 1 hour 30 minutes", 5_400_000_000),
        ("1.5 seconds", 1_500_000),
        ("2 days", 172_800_000_000),
        (datetime.timedelta(milliseconds=5), 5_000),
        ("7 microseconds", 7),
    ],
)
def test_durations_are_read_as_spark_reads_them(text: Any, length_us: int) -> None:
    assert microseconds(text, "x") == length_us
    assert microseconds(interval(length_us), "x") == length_us


@pytest.mark.parametrize(
    "text", ["", "10", "ten seconds", "1 month", "-5 seconds", "0 seconds", "1 second ago", 10, None]
)
def test_what_is_no_duration_is_refused_with_what_it_was_for(text: Any) -> None:
    with pytest.raises(ConfigError, match="size"):
        tumbling("at", text)


@pytest.mark.parametrize(
    "make", [lambda: hopping("at", "5 seconds", "10 seconds"), lambda: sliding("at", "1 hour", "1 second")]
)
def test_windows_that_lose_or_multiply_events_are_refused(make: Callable[[], Column]) -> None:
    with pytest.raises(ConfigError, match=r"belong to no window|in 3600 windows"):
        make()


def test_the_event_time_is_a_field(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1_767_225_605_500, "x")], "ms long, text string").withColumn("at", F.lit(START))
    assert seconds(frame.select(event_time(frame, "ms", "ms")).head()[0]) == 5.5  # type: ignore[index]
    assert seconds(frame.select(event_time(frame, "at")).head()[0]) == 0  # type: ignore[index]
    with pytest.raises(SchemaMismatchError, match="'text' is string"):
        event_time(frame, "text")
    with pytest.raises(SchemaMismatchError, match="no column 'when'"):
        event_time(frame, "when")


def test_the_append_time_is_the_logs_or_the_query_fails(spark: SparkSession) -> None:
    columns = "topic string, timestamp timestamp, timestamp_type string"
    appended = spark.createDataFrame([("orders", START, "append")], columns)
    assert seconds(appended.select(append_time(appended)).head()[0]) == 0  # type: ignore[index]
    created = spark.createDataFrame([("orders", START, "create")], columns)
    with pytest.raises(PySparkException, match=r"set message\.timestamp\.type=LogAppendTime on the topic"):
        created.select(append_time(created)).collect()
    with pytest.raises(SchemaMismatchError, match="include it when you select"):
        append_time(created.drop("timestamp_type"))


def test_the_processing_time_of_a_batch_that_is_repeated_is_what_it_was(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "id int")
    feed.put([{"id": 1}, {"id": 2}])
    frame = feed.stream().withColumn("at", processing_time())
    first, second = Collected(tmp_path / "ck"), Collected(tmp_path / "ck")
    with pytest.raises(PySparkException):
        first.run(frame, fail_at=0)
    second.run(frame)
    assert len({row.at for row in (*first.rows, *second.rows)}) == 1
    assert len(second.rows) == 2
