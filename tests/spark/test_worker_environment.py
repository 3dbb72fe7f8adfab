"""What queries share with each other keeps its shape while they start: Spark puts nothing new into it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from penstock import Connection
from penstock.spark.reading import FORMAT, read_stream, register
from penstock.spark.run.plans import analysed, nodes
from penstock.spark.sessions.worker_environment import set_source_environment
from penstock.spark.source.format import PenstockDataSource
from penstock.spark.state.context import KeyContext
from penstock.spark.state.stateful_functions import stateful
from tests.spark.source.reading import send_numbers
from tests.spark.time.batches import Collected

COUNT = StructType([StructField("count", LongType())])


def count(key: Any, rows: Iterator[Row], ctx: KeyContext) -> Iterator[tuple[int]]:
    ctx.state.put(ctx.state.get(0) + len(list(rows)))
    yield (ctx.state.get(0),)


def results(frame: DataFrame, checkpoint: Path) -> list[Row]:
    collected = Collected(checkpoint, mode="update")
    collected.run(frame)
    return collected.rows


def names(function: Any) -> set[str]:
    return set(function.envVars())


def functions(frame: DataFrame) -> list[Any]:
    """The functions of Python, objects of the JVM, that keep state in this frame."""
    return [node.functionExpr().func() for node in nodes(analysed(frame)) if "TransformWithState" in node.nodeName()]


class Unused(PenstockDataSource):
    """The source once more, which no query has touched."""

    @classmethod
    def name(cls) -> str:
        return "penstock-unused"


def source_of(spark: SparkSession, name: str) -> Any:
    return spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name)


def test_a_query_puts_nothing_new_into_what_the_queries_of_one_source_share(
    spark: SparkSession, connection: Connection, log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.create_topic("events", 1)
    send_numbers(connection, "events", range(5))
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "environment", {})
        spark.dataSource.register(Unused)
    source = source_of(spark, Unused.name())
    assert names(source.dataSourceCls()) == set()
    set_source_environment(spark, source)
    before = names(source.dataSourceCls())
    frame = spark.readStream.format(Unused.name()).option("url", log_url).option("topic", "events").load()
    assert len(results(frame, tmp_path / "checkpoint")) == 5
    assert names(source.dataSourceCls()) == before


def test_a_query_puts_nothing_new_into_what_the_queries_of_one_function_share(
    spark: SparkSession, connection: Connection, log_url: str, tmp_path: Path
) -> None:
    connection.create_topic("events", 1)
    send_numbers(connection, "events", range(5))
    frame = stateful(read_stream(spark, log_url, "events"), "topic", count, COUNT, state=int)
    (function,) = functions(frame)
    before = names(function)
    assert results(frame, tmp_path / "checkpoint") == [Row(count=5)]
    assert names(function) == before


def test_the_source_that_spark_found_by_itself_is_settled_when_it_is_first_read(spark: SparkSession) -> None:
    register(spark)
    assert names(source_of(spark, FORMAT).dataSourceCls()) >= {"SPARK_LOCAL_DIRS", "SPARK_PYTHON_RUNTIME"}
