"""The format "penstock" as a sink, in the hands of plain Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import Connection
from penstock.errors import ConfigError, GuaranteeError, SchemaMismatchError
from penstock.spark.sink.data_source import batch_writer, parse_sink_options
from penstock.spark.sink.rows import check_records
from penstock.spark.source.format import PenstockDataSource
from tests.spark.sink.frames import numbered, numbers_in, once_each


@pytest.fixture
def with_format(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(PenstockDataSource)
    return spark


def test_a_stream_is_written_once_also_when_spark_repeats_its_last_batch(
    with_format: SparkSession, tmp_path: Path, url: str, topic: str, sink_connection: Connection
) -> None:
    folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    folder.mkdir()
    for part in range(2):
        (folder / f"{part}.txt").write_text("".join(f"{each}\n" for each in range(part * 50, part * 50 + 50)))

    def run() -> None:
        lines = with_format.readStream.option("maxFilesPerTrigger", 1).text(str(folder))
        query = (
            lines.writeStream.format("penstock")
            .options(url=url, topic=topic, partitions=2, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert numbers_in(sink_connection, topic) == once_each(0, 100)
    for file in (checkpoint / "commits").glob("*1*"):
        file.unlink()  # as if the driver had died before Spark noted that the batch was done
    run()
    assert numbers_in(sink_connection, topic) == once_each(0, 100)


def test_a_frame_is_written_whole(with_format: SparkSession, url: str, topic: str, sink_connection: Connection) -> None:
    writer = numbered(with_format, 0, 3_000).write.format("penstock").mode("append")
    writer.options(url=url, topic=topic, partitions=2).save()
    assert numbers_in(sink_connection, topic) == once_each(0, 3_000)


def test_a_frame_is_not_written_at_all_when_a_task_fails(
    with_format: SparkSession, url: str, topic: str, sink_connection: Connection
) -> None:
    sink_connection.create_topic(topic, 1)
    frame = numbered(with_format, 0, 100)
    bad = frame.withColumn(
        "value", F.when(F.col("value") == "77", F.raise_error(F.lit("bad"))).otherwise(F.col("value"))
    )
    with pytest.raises(PySparkException):
        bad.write.format("penstock").mode("append").options(url=url, topic=topic).save()
    assert not numbers_in(sink_connection, topic)


def test_at_least_once_is_written_by_the_tasks(
    with_format: SparkSession, url: str, topic: str, sink_connection: Connection
) -> None:
    writer = numbered(with_format, 0, 100).write.format("penstock").mode("append")
    writer.options(url=url, topic=topic, guarantee="at-least-once").save()
    assert numbers_in(sink_connection, topic) == once_each(0, 100)


def test_what_it_cannot_do_is_refused_by_name(spark: SparkSession, url: str) -> None:
    schema = numbered(spark, 0, 1).schema
    with pytest.raises(ConfigError, match="cannot overwrite"):
        batch_writer({"url": url, "topic": "t"}, schema, True)
    with pytest.raises(ConfigError, match="no option 'topics'"):
        parse_sink_options({"url": url, "topics": "t"})
    with pytest.raises(ConfigError, match="exists only in this process"):
        parse_sink_options({"url": "memory:x", "topic": "t"})
    with pytest.raises(GuaranteeError, match="at-most-once"):
        parse_sink_options({"url": url, "topic": "t", "guarantee": "at-most-once"})
    with pytest.raises(SchemaMismatchError, match="writes records"):
        check_records(spark.range(1).schema, "t")
    with pytest.raises(SchemaMismatchError, match="there is no topic"):
        check_records(schema, None)
