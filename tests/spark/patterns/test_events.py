"""Events one by one, and what is known of each key: routes, parts, summaries, duplicates."""

from __future__ import annotations

import json
import random
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import by_idempotency_key, route, split, summary, without_duplicates
from penstock.spark.windows import tumbling
from tests.seeds import seed_of
from tests.spark.time.batches import Batches, Collected, at, seconds

ORDERS = "id int, customer string, amount double, at timestamp"


def test_each_row_goes_to_the_first_topic_whose_condition_holds(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(1, 5.0), (2, 50.0), (3, 500.0), (4, None)], "id int, amount double")
    topics: dict[str, Column | str] = {"orders.huge": F.col("amount") >= 500, "orders.big": "amount >= 50"}
    rows = route(frame, topics, otherwise="orders.rest", key="id").collect()
    assert {json.loads(row.value)["id"]: row.topic for row in rows} == {
        1: "orders.rest",
        2: "orders.big",
        3: "orders.huge",
        4: "orders.rest",
    }
    assert [bytes(row.key) for row in rows] == [b"1", b"2", b"3", b"4"]
    assert [row.topic for row in route(frame, topics, otherwise=None).collect()] == ["orders.big", "orders.huge"]
    with pytest.raises(ConfigError, match="no conditions"):
        route(frame, {}, otherwise=None)


def test_records_are_routed_as_they_are(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"k", b"v", "in", 7)], "key binary, value binary, topic string, pointer long")
    row = route(frame, {"out": "pointer = 7"}, otherwise="else").head()
    assert row is not None
    assert (bytes(row.key), bytes(row.value), row.topic) == (b"k", b"v", "out")


def test_a_split_gives_each_condition_its_rows(spark: SparkSession) -> None:
    frame = spark.range(10)
    parts = split(frame, {"even": "id % 2 = 0", "small": F.col("id") < 3})
    assert {name: sorted(row.id for row in part.collect()) for name, part in parts.items()} == {
        "even": [0, 2, 4, 6, 8],
        "small": [0, 1, 2],
    }


def test_a_summary_of_each_key_and_window_is_right_across_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", ORDERS, partitions=2)
    made: dict[tuple[str, int], list[float]] = defaultdict(list)
    for step in range(4):
        parts = []
        for _ in range(2):
            rows = [(rng.choice("abc"), round(rng.uniform(1, 100), 2), step * 5 + rng.randrange(5)) for _ in range(5)]
            parts.append([{"id": 0, "customer": who, "amount": much, "at": at(when)} for who, much, when in rows])
            for who, much, when in rows:
                made[who, when // 10 * 10].append(much)
        feed.put(*parts)
    feed.put([{"id": 0, "customer": "end", "amount": 0.0, "at": at(1_000)}], [])
    gate = OnTimeGate("late", "at", window="10 seconds", grace="5 seconds", side=str(tmp_path / "side"))
    found = summary(gate.apply(feed.stream()), [tumbling("at", "10 seconds"), "customer"], "amount")
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(found, fail_at=1)
    collected.run(found)
    assert len(collected.rows) == len(made)
    for row in collected.rows:
        amounts = made[row.customer, int(seconds(row.window.start))]
        assert (row["count"], row.min, row.max) == (len(amounts), min(amounts), max(amounts))
        assert row.average == pytest.approx(statistics.fmean(amounts))


def test_what_comes_twice_counts_once_and_rows_without_a_key_stay(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "id int, headers array<struct<key: string, value: binary>>, at timestamp")

    def record(number: int, name: str | None, when: float) -> dict[str, object]:
        value = [] if name is None else [{"key": "id", "value": name}]  # JSON has its bytes in base64
        return {"id": number, "headers": value, "at": at(when)}

    feed.put([record(1, "aaaa", 1), record(2, "aaaa", 2), record(3, "bbbb", 3), record(4, None, 3), record(5, None, 3)])
    feed.put([record(6, "bbbb", 5), record(7, "cccc", 6), record(8, None, 7)])
    feed.put([record(9, "cccc", 8), record(10, "aaaa", 9), record(11, None, 7)])
    keyed = by_idempotency_key(feed.stream().withWatermark("at", "1 hour"), "header:id")
    once = without_duplicates(keyed, "idempotency_key")
    collected = Collected(tmp_path / "ck")
    with pytest.raises(StreamingQueryException):
        collected.run(once, fail_at=1)
    collected.run(once)
    found = sorted(row.id for row in collected.rows)
    assert found in ([1, 3, 4, 5, 7, 8, 11], [2, 3, 4, 5, 7, 8, 11])


def test_duplicates_of_a_batch_frame_go_too(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([("a", 1), ("a", 1), (None, 1), (None, 1)], "key string, n int")
    assert sorted(str(row.key) for row in without_duplicates(frame, "key").collect()) == ["None", "None", "a"]
    assert [row.idempotency_key for row in by_idempotency_key(frame).limit(1).collect()] == ["a"]
    with pytest.raises(SchemaMismatchError, match="no column 'id'"):
        without_duplicates(frame, "id")
    with pytest.raises(ConfigError, match="kept forever"):
        without_duplicates(Batches(spark, tmp_path / "in", "id int").stream(), "id")
    with pytest.raises(ConfigError, match='use "key" or "header:NAME"'):
        by_idempotency_key(frame, "id")
