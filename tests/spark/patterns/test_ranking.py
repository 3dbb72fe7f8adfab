"""The top movers of each day, in two stages: by symbol in many tasks, then all together in one."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError, SchemaMismatchError
from penstock.spark.late.gate import OnTimeGate
from penstock.spark.patterns import top_n
from penstock.spark.windows import tumbling
from tests.seeds import seed_of
from tests.spark.time.batches import Batches, Collected, at, seconds

DAY = 86_400


def test_the_top_movers_of_each_day_are_those_that_moved_most(spark: SparkSession, tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    feed = Batches(spark, tmp_path / "in", "symbol string, price double, at timestamp", partitions=2)
    prices: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for step in range(4):
        parts = []
        for part in range(2):
            rows = [
                (f"S{rng.randrange(15):02}", round(rng.uniform(10, 20), 3), step * DAY / 2 + (part * 12 + i) * 1_000)
                for i in range(12)
            ]
            parts.append([{"symbol": symbol, "price": price, "at": at(when)} for symbol, price, when in rows])
            for symbol, price, when in rows:
                prices[int(when // DAY)][symbol].append((when, price))
        feed.put(*parts)
    for days in (30, 60):
        feed.put([{"symbol": "END", "price": 1.0, "at": at(days * DAY)}], [])

    gate = OnTimeGate("late", "at", window="1 day", grace="1 hour", side=str(tmp_path / "side"))
    moves = (
        gate.apply(feed.stream())
        .groupBy(tumbling("at", "1 day"), "symbol")
        .agg(F.max_by("price", "at").alias("last"), F.min_by("price", "at").alias("first"))
        .withColumn("change", F.round(F.col("last") - F.col("first"), 3))
    )
    movers = top_n(moves, 3, by=F.abs("change"))
    collected = Collected(tmp_path / "ck", [gate])
    with pytest.raises(StreamingQueryException):
        collected.run(movers, fail_at=2)
    collected.run(movers)

    expected = {}
    for day, symbols in prices.items():
        changes = {symbol: round(max(seen)[1] - min(seen)[1], 3) for symbol, seen in symbols.items()}
        expected[day] = sorted((abs(change) for change in changes.values()), reverse=True)[:3]
        assert all(
            changes[row.symbol] == row.change for row in collected.rows if seconds(row.window.start) == day * DAY
        )
    found: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for row in collected.rows:
        if row.symbol != "END":
            found[int(seconds(row.window.start) // DAY)].append((row.rank, abs(row.change)))
    assert {day: sorted(ranked) for day, ranked in found.items()} == {
        day: list(enumerate(best, 1)) for day, best in expected.items()
    }


def test_ranks_of_a_batch_frame_are_exact_and_nulls_never_first(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("d", "a", 1), ("d", "b", 3), ("d", "c", None), ("e", "a", 2)], "day string, who string, n int"
    )
    first = top_n(frame, 2, "n", per="day").orderBy("day", "rank").collect()
    assert [tuple(row) for row in first] == [("d", 1, "b", 3), ("d", 2, "a", 1), ("e", 1, "a", 2)]
    last = top_n(frame, 1, "n", per="day", ascending=True).orderBy("day").collect()
    assert [row.who for row in last] == ["a", "a"]
    with pytest.raises(SchemaMismatchError, match="no column 'window'"):
        top_n(frame, 2, "n")
    with pytest.raises(ConfigError, match="n=0"):
        top_n(frame, 0, "n", per="day")
