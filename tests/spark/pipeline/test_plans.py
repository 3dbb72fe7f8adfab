"""What Spark's plan tells of a frame."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark.run.plans import (
    describe_stateful_operators,
    mode_of,
    require_stream,
    sources,
    stateful_operators,
    what_changed,
)
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful


@pytest.fixture
def ticks(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load()


def test_results_that_are_final_are_appended(ticks: DataFrame) -> None:
    windows = ticks.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "10 seconds")).count()
    assert mode_of(ticks, None, "a query") == "append"
    assert mode_of(windows, None, "a query") == "append"


def test_results_that_change_are_updated(ticks: DataFrame) -> None:
    assert mode_of(ticks.groupBy("value").count(), None, "a query") == "update"
    assert mode_of(ticks.groupBy("value").count(), "complete", "a query") == "complete"


def test_a_mode_that_spark_cannot_do_is_refused_with_its_reason(ticks: DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"query 'x'.*append mode.*watermark"):
        mode_of(ticks.groupBy("value").count(), "append", "query 'x'")
    with pytest.raises(ConfigError, match="'sometimes' is not allowed"):
        mode_of(ticks, "sometimes", "query 'x'")  # type: ignore[arg-type]


def test_a_frame_that_is_no_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="is not streaming"):
        require_stream(spark.range(3), "query 'x'")
    with pytest.raises(ConfigError, match="not a DataFrame"):
        require_stream("orders", "query 'x'")  # type: ignore[arg-type]


def test_state_is_recognised_by_what_it_keeps_and_not_by_what_is_around_it(ticks: DataFrame) -> None:
    def counts(frame: DataFrame, by: str) -> list[str]:
        return stateful_operators(frame.withWatermark("timestamp", "1 minute").groupBy(by).count())

    same = counts(ticks, "value")
    assert len(same) == 1
    assert counts(ticks.where("value > 3"), "value") == same
    assert stateful_operators(ticks.groupBy("value").count().where("count > 2")) == same
    assert counts(ticks, "timestamp") != same
    assert stateful_operators(ticks.where("value > 3")) == []


def test_sources_are_named_in_their_order(ticks: DataFrame, spark: SparkSession) -> None:
    assert sources(ticks.union(spark.readStream.format("rate").load())) == ["rate", "rate"]
    assert sources(ticks.join(spark.range(3).withColumnRenamed("id", "value"), "value")) == ["rate"]


def told(frame: DataFrame) -> str:
    return str(describe_stateful_operators(frame))


def hidden(start: float) -> Column:
    """More arguments than Spark shows, of which one differs."""
    return F.struct(*(F.lit(n if n < 29 else start).alias(f"f{n}") for n in range(30)))


def keep(key: object, rows: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, int]]:
    yield {"n": 1}


def forget(key: object, rows: Iterator[Row], ctx: KeyContext) -> Iterator[dict[str, int]]:
    yield {"n": 1}


def windowed(ticks: DataFrame, *window: str) -> DataFrame:
    return ticks.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", *window)).count()


CHANGES: Final[dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[DataFrame], DataFrame], str]]] = {
    "aggregate": (
        lambda it: it.groupBy("value").agg(F.sum("value").alias("x")),
        lambda it: it.groupBy("value").agg(F.max("value").alias("x")),
        "aggregate sum(value) became max(value)",
    ),
    "aggregated column": (
        lambda it: it.withColumn("a", F.col("value") * 2).groupBy("value").agg(F.sum("a").alias("x")),
        lambda it: it.withColumn("a", F.col("value") * 3).groupBy("value").agg(F.sum("a").alias("x")),
        "aggregate sum((value * cast(2 as bigint))) became sum((value * cast(3 as bigint)))",
    ),
    "one more": (
        lambda it: it.groupBy("value").agg(F.sum("value").alias("x")),
        lambda it: it.groupBy("value").agg(F.sum("value").alias("x"), F.min("value").alias("y")),
        "aggregate min(value) is new",
    ),
    "far behind": (
        lambda it: it.groupBy("value").agg(F.max(hidden(1.0)).alias("x")),
        lambda it: it.groupBy("value").agg(F.max(hidden(2.0)).alias("x")),
        "became",
    ),
    "key": (
        lambda it: it.groupBy(F.col("value").alias("k")).count(),
        lambda it: it.groupBy((F.col("value") % 2).alias("k")).count(),
        "grouping key value became (value % cast(2 as bigint))",
    ),
    "key by another name": (
        lambda it: it.withColumn("k", F.col("value")).groupBy("k").count(),
        lambda it: it.withColumn("k", F.col("value") % 2).groupBy("k").count(),
        "grouping key value became (value % cast(2 as bigint))",
    ),
    "window": (
        lambda it: windowed(it, "10 seconds"),
        lambda it: windowed(it, "1 minute"),
        "grouping key window(timestamp, 10 seconds) became window(timestamp, 1 minutes)",
    ),
    "slide": (
        lambda it: windowed(it, "10 seconds", "5 seconds"),
        lambda it: windowed(it, "10 seconds", "2 seconds"),
        "window(timestamp, 10 seconds, every 5 seconds) became window(timestamp, 10 seconds, every 2 seconds)",
    ),
    "session": (
        lambda it: it.groupBy(F.session_window("timestamp", "5 seconds"), "value").count(),
        lambda it: it.groupBy(F.session_window("timestamp", "6 seconds"), "value").count(),
        "session_window(timestamp, 5 seconds) became session_window(timestamp, 6 seconds)",
    ),
    "watermark": (
        lambda it: it.withWatermark("timestamp", "1 minute").dropDuplicates(["value", "timestamp"]),
        lambda it: it.withWatermark("timestamp", "2 minutes").dropDuplicates(["value", "timestamp"]),
        "in watermark, delay 1 minutes became 2 minutes",
    ),
    "duplicates": (
        lambda it: it.dropDuplicates(["value"]),
        lambda it: it.dropDuplicates(["value", "timestamp"]),
        "in Deduplicate, key timestamp is new",
    ),
    "join": (
        lambda it: it.join(it.select(F.col("value").alias("v")), F.col("value") == F.col("v")),
        lambda it: it.join(it.select(F.col("value").alias("v")), F.col("value") == F.col("v") + 1),
        "condition (left.value = right.value) became",
    ),
    "join type": (
        lambda it: it.join(it.select(F.col("value").alias("v")), F.col("value") == F.col("v")),
        lambda it: it.join(it.select(F.col("value").alias("v")), F.col("value") == F.col("v"), "left"),
        "join type Inner became LeftOuter",
    ),
    "limit": (lambda it: it.limit(5), lambda it: it.limit(6), "in limit, rows 5 became 6"),
    "state": (
        lambda it: stateful(it, "value", keep, "n long", state=float),
        lambda it: stateful(it, "value", keep, "n long", state=str),
        "state state struct<value:double> became state struct<value:string>",
    ),
    "function": (
        lambda it: stateful(it, "value", keep, "n long", state=float),
        lambda it: stateful(it, "value", forget, "n long", state=float),
        "function keep became forget",
    ),
    "operator": (
        lambda it: it.groupBy("value").count(),
        lambda it: it.dropDuplicates(["value"]),
        "its state belongs to Aggregate, and the program now has Deduplicate",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_stateful_operator_is_named(ticks: DataFrame, change: str) -> None:
    before, now, text = CHANGES[change]
    changed = what_changed(describe_stateful_operators(before(ticks)), describe_stateful_operators(now(ticks)))
    assert changed is not None
    assert text in changed


@pytest.mark.parametrize("change", CHANGES)
def test_the_same_program_is_told_in_the_same_words_every_time(spark: SparkSession, change: str) -> None:
    before, _, _ = CHANGES[change]
    first, again = (before(spark.readStream.format("rate").load()) for _ in range(2))
    assert told(first) == told(again)


def test_what_may_differ_from_start_to_start_is_left_out(ticks: DataFrame) -> None:
    def program(name: str, since: str) -> DataFrame:
        salted = ticks.withColumn("salt", (F.rand() * 8).cast("int")).withColumnRenamed("value", name)
        recent = F.col("timestamp") > F.lit(datetime.datetime.fromisoformat(since))
        lists = F.transform(F.array(name), lambda x: x + 1)
        return salted.filter(recent).groupBy("salt").agg(F.max(lists).alias("x"), F.count(F.when(recent, 1)).alias("n"))

    assert told(program("a", "2026-01-01T00:00:00")) == told(program("b", "2026-01-02T00:00:00"))


def test_a_query_without_state_has_nothing_to_tell(ticks: DataFrame) -> None:
    assert describe_stateful_operators(ticks.withWatermark("timestamp", "1 minute").select("value")) == []
