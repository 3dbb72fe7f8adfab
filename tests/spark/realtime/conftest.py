"""Queries in real-time mode on the session that all tests of Spark share, with batches of a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.reading import read_stream
from penstock.spark.realtime.mode import start_real_time
from penstock.spark.sessions.opening import has_connector

Starting = Callable[..., StreamingQuery]
Reading = Callable[..., DataFrame]

_SHORTEST = "spark.sql.streaming.realTimeMode.minBatchDuration"


@pytest.fixture
def real_time(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, with batches of a second allowed."""
    if not has_connector(spark):
        pytest.skip("Spark's Kafka connector is missing: run `penstock spark jars` (or `make parts`)")
    spark.conf.set(_SHORTEST, "1000")
    yield spark
    spark.conf.unset(_SHORTEST)


@pytest.fixture
def read(real_time: SparkSession, log_url: str) -> Reading:
    """A topic of the log through Spark's Kafka connector."""

    def of(topic: str, start: str = "earliest", url: str = log_url) -> DataFrame:
        return read_stream(real_time, url, topic, engine="native", start=start)

    return of


@pytest.fixture
def start(real_time: SparkSession, log_url: str, tmp_path: Path) -> Iterator[Starting]:
    """Starts a query that is stopped when the test ends."""
    started: list[StreamingQuery] = []

    def begin(
        frame: DataFrame,
        topic: str | None,
        *,
        name: str = "real-time",
        url: str = log_url,
        batch: str = "1 second",
        **more: object,
    ) -> StreamingQuery:
        checkpoint = str(tmp_path / "checkpoints" / name)
        query = start_real_time(frame, url, topic, checkpoint=checkpoint, name=name, batch=batch, **more)  # type: ignore[arg-type]
        started.append(query)
        return query

    yield begin
    for query in started:
        query.stop()
