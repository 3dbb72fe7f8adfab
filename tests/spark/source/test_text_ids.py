"""A stream of another package, whose pointers are no offsets: its ids are text, its partitions come and go."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import penstock
from penstock import Guarantee, Topic
from penstock.errors import ConfigError, GuaranteeError, RecordsExpiredError, RecordsLostError
from penstock.model import NewRecord
from penstock.spark import Pipeline
from penstock.spark.reading import read_batch, read_stream, read_table
from penstock.spark.run.progress import _lag, _source
from penstock.streams.record_columns import pointer_text
from tests.spark.killing import ROOT
from tests.spark.source import killed_query
from tests.spark.source.reading import numbers_of, stream_reader
from tests.spark.source.test_stream_reader import look_again
from tests.spark.text_ids.penstock_text_ids import TextIds, id_of, pointer_of

PASSWORD = "quite-hidden"


def opened(folder: Path) -> TextIds:
    return TextIds(f"textids://ann:{PASSWORD}@{folder / 'records.db'}", {})


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[TextIds]:
    made = opened(tmp_path)
    yield made
    made.close()


def send(stream: TextIds, topic: str, numbers: range, partitions: int = 1, at_ms: int = 1_700_000_000_000) -> None:
    for number in numbers:
        record = NewRecord(topic, b"%d" % number, b"k%d" % (number % 7), timestamp_ms=at_ms + number // 5)
        stream.store(topic, number % partitions, record)


def test_limited_batches_count_records_and_not_pointers(stream: TextIds) -> None:
    stream.create_topic("orders", 3)
    send(stream, "orders", range(100), 3)
    reader = stream_reader(stream.url, "orders", maxRecordsPerBatch="30")
    start = reader.initialOffset()
    first, end = next_batch_of_text(reader, start)
    assert sorted(numbers_of(first)) == list(range(30)), "partitions take turns"
    assert first[0]["pointer"] == pointer_text(pointer_of("1700000000000-0"))
    sizes, reached = [len(first)], end
    while (then := reader.latestOffset(reached, reader.getDefaultReadLimit())) != reached:
        sizes.append(len(text_rows(reader, reached, then)))
        reached = then
    assert sizes == [30, 30, 30, 10]
    assert id_of(reached["orders"]["0"] - 1) == "1700000000019-1"
    again = stream_reader(stream.url, "orders", maxRecordsPerBatch="30")
    assert text_rows(again, start, end) == first, "a repeated batch has the same records"
    assert again.latestOffset(reached, again.getDefaultReadLimit()) == reached


def text_rows(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]


def next_batch_of_text(reader: Any, start: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    return text_rows(reader, start, end), end


def test_a_limit_in_bytes_is_kept_and_a_larger_record_is_a_batch(stream: TextIds) -> None:
    stream.create_topic("orders", 1)
    for size in (100, 100, 100, 5000, 100):
        stream.store("orders", 0, NewRecord("orders", b"x" * size))
    reader = stream_reader(stream.url, "orders", maxBytesPerBatch="300")
    reached, sizes = reader.initialOffset(), []
    while (then := reader.latestOffset(reached, reader.getDefaultReadLimit())) != reached:
        sizes.append([len(row["value"]) for row in text_rows(reader, reached, then)])
        reached = then
    assert sizes == [[100, 100], [100], [5000], [100]]


def test_aligned_partitions_are_read_in_the_order_of_their_timestamps(stream: TextIds) -> None:
    stream.create_topic("orders", 2)
    for number in range(40):
        stream.store("orders", 0, NewRecord("orders", b"%d" % number, timestamp_ms=1_000 + number))
    for number in range(40, 50):
        stream.store("orders", 1, NewRecord("orders", b"%d" % number, timestamp_ms=1_000 + number))
    reader = stream_reader(stream.url, "orders", maxRecordsPerBatch="25", alignPartitions="timestamp")
    first, end = next_batch_of_text(reader, reader.initialOffset())
    assert numbers_of(first) == list(range(25))
    second, _ = next_batch_of_text(reader, end)
    assert numbers_of(second) == list(range(25, 50))


def test_a_partition_may_be_retired_once_it_was_read(stream: TextIds, caplog: pytest.LogCaptureFixture) -> None:
    stream.create_topic("orders", 2)
    send(stream, "orders", range(20), 2)
    reader = stream_reader(stream.url, "orders")
    _, end = next_batch_of_text(reader, reader.initialOffset())
    reader.latestOffset(end, reader.getDefaultReadLimit())
    stream.retire("orders", 0)
    stream.add_partition("orders", 5)
    stream.store("orders", 5, NewRecord("orders", b"77"))
    look_again(reader)
    with caplog.at_level(logging.WARNING):
        rows, end = next_batch_of_text(reader, end)
    assert numbers_of(rows) == [77]
    assert end["orders"].keys() == {"1", "5"}
    assert "partition 0 does not exist any more; everything in it was read" in caplog.text


def test_a_partition_that_goes_with_unread_records_is_an_error_unless_that_is_allowed(
    stream: TextIds, caplog: pytest.LogCaptureFixture
) -> None:
    stream.create_topic("orders", 2)
    send(stream, "orders", range(20), 2)
    reader = stream_reader(stream.url, "orders", maxRecordsPerBatch="4")
    start = reader.initialOffset()
    _, end = next_batch_of_text(reader, start)
    stream.retire("orders", 0)
    look_again(reader)
    with pytest.raises(RecordsLostError, match=r"partition 0 does not exist any more.*on_expired"):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    lenient = stream_reader(stream.url, "orders", onExpired="earliest")
    rows, end = next_batch_of_text(lenient, end)
    assert numbers_of(rows) == [number for number in range(20) if number % 2][2:]
    with pytest.raises(RecordsLostError):
        reader.partitions(start, {"orders": {"0": 1 << 110, "1": 0}})


def test_expired_records_are_an_error_unless_a_position_is_given(stream: TextIds) -> None:
    stream.create_topic("orders", 1)
    send(stream, "orders", range(20))
    reader = stream_reader(stream.url, "orders", maxRecordsPerBatch="4")
    _, end = next_batch_of_text(reader, reader.initialOffset())
    stream.expire("orders", 0, "1700000000002-0")
    with pytest.raises(RecordsExpiredError):
        reader.latestOffset(end, reader.getDefaultReadLimit())
    lenient = stream_reader(stream.url, "orders", onExpired="earliest")
    rows, _ = next_batch_of_text(lenient, end)
    assert numbers_of(rows) == list(range(10, 20))


def test_positions_are_pointers_of_any_size_or_refused(stream: TextIds, spark: SparkSession) -> None:
    stream.create_topic("orders", 1)
    send(stream, "orders", range(20))
    begin = pointer_of("1700000000002-3")
    frame = read_batch(spark, stream.url, "orders", start={0: begin})
    assert numbers(frame.collect()) == list(range(13, 20))
    with pytest.raises(ConfigError, match=r"start='2026-01-01T00:00Z' is not available.*no positions at a time"):
        read_stream(spark, stream.url, "orders", start="2026-01-01T00:00Z")
    with pytest.raises(ConfigError, match='is not Kafka: use engine="python"'):
        read_stream(spark, stream.url, "orders", engine="native")
    with pytest.raises(ConfigError, match="no region 'mars'"):
        read_stream(spark, stream.url, "orders", client={"region": "mars"})


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def run(frame: DataFrame, checkpoint: Path) -> tuple[list[list[Row]], list[dict[str, Any]]]:
    """The rows of each batch of a run that takes what is there, and its progress."""
    batches: list[list[Row]] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches, [json.loads(each.json) for each in query.recentProgress]


def test_a_query_reads_it_in_limited_batches_and_goes_on_after_a_restart(
    spark: SparkSession, stream: TextIds, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.create_topic("orders", 2)
    send(stream, "orders", range(50), 2)
    frame = read_stream(spark, stream.url, "orders", max_records_per_batch=20, client={"region": "eu"})
    assert dict(frame.dtypes)["pointer"] == "string"
    first, progress = run(frame, tmp_path / "checkpoint")
    assert [len(rows) for rows in first] == [20, 20, 10]
    assert numbers([row for rows in first for row in rows]) == list(range(50))
    assert {row.pointer for rows in first for row in rows} == {
        pointer_text(record.offset) for part in (0, 1) for record in stream.open_topic("orders").read(part, 0, 99, 0)
    }
    lags = [_lag([_source(each) for each in one["sources"]]) for one in progress if one["numInputRows"]]
    assert lags == [None, None, 0]
    send(stream, "orders", range(50, 60), 2)
    second, _ = run(frame, tmp_path / "checkpoint")
    assert numbers([row for rows in second for row in rows]) == list(range(50, 60))
    frame.explain(extended=True)
    logged = capfd.readouterr()
    assert PASSWORD not in f"{logged.out}{logged.err}{json.dumps(progress)}{frame._jdf.queryExecution().toString()}"


@dataclass
class Order:
    id: int
    cents: int


def test_a_pipeline_reads_and_writes_it_at_least_once(spark: SparkSession, stream: TextIds, tmp_path: Path) -> None:
    orders = Topic("orders", Order)
    stream.create_topic("orders")
    with penstock.connect(stream.url) as connection:
        for number in range(10):
            connection.send(orders, Order(number, 100 * number)).result(5)
        connection.send("orders", b"no order").result(5)
    pipeline = Pipeline("totals", stream.url, spark=spark, checkpoints=str(tmp_path / "state"))
    assert PASSWORD not in f"{pipeline!r} {pipeline.url}"
    read = pipeline.read(orders)
    assert dict(read.dtypes)["pointer"] == "string"
    rows = read.where("cents >= 500").select("id", "cents")
    with pytest.raises(GuaranteeError, match=re.escape("exactly-once is not available for topic large")) as caught:
        pipeline.write(rows, "large")
    assert PASSWORD not in str(caught.value)
    pipeline.write(rows, "large", guarantee=Guarantee.AT_LEAST_ONCE)
    pipeline.run(once=True, quiet=True)
    pipeline.close()
    with penstock.connect(stream.url) as connection:
        found = [json.loads(record.value or b"") for record in connection.read("large")]
        [letter] = list(connection.read("orders.dlq"))
    assert sorted(each["id"] for each in found) == [5, 6, 7, 8, 9]
    assert letter.value == b"no order"
    assert pipeline.undecodable() == {"orders": 1}


def test_the_format_writes_it_at_least_once_and_says_so(spark: SparkSession, stream: TextIds) -> None:
    frame = spark.createDataFrame([(b"a",), (b"b",)], "value binary")
    writer = frame.write.format("penstock").mode("append").option("url", stream.url).option("topic", "letters")
    with pytest.raises(Exception, match="exactly-once is not available"):
        writer.save()
    writer.option("guarantee", "at-least-once").save()
    with penstock.connect(stream.url) as connection:
        assert sorted(record.value or b"" for record in connection.read("letters")) == [b"a", b"b"]


def test_a_table_of_it_is_the_latest_value_of_each_key(spark: SparkSession, stream: TextIds) -> None:
    stream.create_topic("prices", 1)
    send(stream, "prices", range(20))
    table = read_table(spark, stream.url, "prices")
    assert numbers(table.collect()) == list(range(13, 20))
    stream.expire("prices", 0, "1700000000003-0")
    assert numbers(table.collect()) == list(range(15, 20))


def test_a_batch_that_was_killed_is_repeated_with_the_same_records(
    spark: SparkSession, stream: TextIds, tmp_path: Path
) -> None:
    stream.create_topic("orders", 2)
    send(stream, "orders", range(20), 2)
    checkpoint = str(tmp_path / "checkpoint")
    program = [sys.executable, "-m", "tests.spark.source.killed_query", stream.url, checkpoint, str(tmp_path)]
    killed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-4000:]
    assert PASSWORD not in killed.stderr
    send(stream, "orders", range(20, 30), 2)
    killed_query.run(spark, stream.url, checkpoint, tmp_path, None)
    assert (tmp_path / "1.None.json").read_text() == (tmp_path / "1.1.json").read_text()
    files = [tmp_path / "0.1.json", *sorted(tmp_path.glob("*.None.json"))]
    batches = [[int(value) for _, _, value in json.loads(file.read_text())] for file in files]
    assert [len(batch) for batch in batches] == [8, 8, 8, 6]
    assert sorted(value for batch in batches for value in batch) == list(range(30))
