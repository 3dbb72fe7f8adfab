"""What Spark's plan tells of a frame."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import ConfigError
from penstock.spark.plans import mode_of, require_stream, sources, stateful_operators


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
    with pytest.raises(ConfigError, match="not a stream"):
        require_stream(spark.range(3), "query 'x'")
    with pytest.raises(ConfigError, match="no DataFrame"):
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
