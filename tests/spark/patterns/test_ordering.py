"""Rows that came out of sequence leave in the order in which they happened."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.errors import SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import in_order
from tests.seeds import seed_of
from tests.spark.time.batches import Batches, Collected, at, seconds


def test_rows_of_a_key_leave_in_order_and_none_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", "id int, key string, at timestamp", partitions=2)
    made: dict[int, tuple[str, float]] = {}
    for step in range(4):
        parts = []
        for _ in range(2):
            rows = [
                (len(made) + i, rng.choice("ab"), step * 10 + rng.randrange(-9_500, 10_000) / 1_000) for i in range(6)
            ]
            made |= {number: (key, when) for number, key, when in rows}
            parts.append([{"id": number, "key": key, "at": at(when)} for number, key, when in rows])
        feed.put(*parts)
    feed.put([{"id": -1, "key": "end", "at": at(1_000)}], [])
    gate = OnTimeGate("late", "at", grace="8 seconds", side=str(tmp_path / "side"))
    ordered = in_order(gate.apply(feed.stream()), "key", "at")
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(ordered, fail_at=2)
    collected.run(ordered)
    left = [row for row in collected.rows if row.key != "end"]
    assert sorted([row.id for row in left] + [row.id for row in collected.late]) == sorted(made)
    assert len(left) > len(made) / 2
    for key in "ab":
        times = [seconds(row.at) for row in left if row.key == key]
        assert times == sorted(times)
        assert times == pytest.approx([made[row.id][1] for row in left if row.key == key])
    assert collected.dropped == 0


def test_rows_without_a_time_wait_for_nothing_and_a_wait_must_be_said(spark: SparkSession, tmp_path: Path) -> None:
    feed = Batches(spark, tmp_path / "in", "id int, key string, at timestamp, pointer long")
    feed.put([{"id": 1, "key": "a", "at": None}, {"id": 2, "key": "a", "at": at(5), "pointer": 9}])
    feed.put([{"id": 3, "key": "a", "at": at(5), "pointer": 4}, {"id": 4, "key": "a", "at": at(50)}])
    with pytest.raises(SchemaMismatchError, match="set grace="):
        in_order(feed.stream(), "key", "at")
    with pytest.raises(SchemaMismatchError, match="no column 'key' of type timestamp"):
        in_order(feed.stream(), "key", "key")
    collected = Collected(tmp_path / "ck")
    collected.run(in_order(feed.stream(), "key", "at", "10 seconds"))
    assert [row.id for row in collected.rows] == [1, 3, 2]
