"""The source in real queries: both engines, limits, restarts, new partitions, tables, typed columns, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import penstock
from penstock import Connection
from penstock.errors import BrokerUnavailableError, ConfigError, UnknownTopicError
from penstock.spark.reading import read_batch, read_stream, read_table
from penstock.spark.run.settings import Engine
from penstock.spark.sessions.opening import has_connector
from penstock.spark.values.columns import RECORD
from tests.spark.source.reading import delete_before, send_numbers


@pytest.fixture(params=["python", "native"])
def engine(request: pytest.FixtureRequest, spark: SparkSession) -> Engine:
    if request.param == "native" and not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not on the class path: run `penstock spark jars`")
    chosen: Engine = request.param
    return chosen


def run(frame: DataFrame, checkpoint: Path) -> list[list[Row]]:
    """The rows of each batch of a run that takes what is there."""
    batches: list[list[Row]] = []
    query = (
        frame.writeStream.foreachBatch(lambda rows, _: batches.append(rows.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches


def numbers(rows: list[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


@pytest.fixture
def mixed(connection: Connection, topic: str) -> str:
    """A topic with everything that a record may be: 20 records that count, in two partitions."""
    connection.create_topic(topic, 2)
    for number in range(10):
        connection.send(
            topic,
            None if number == 3 else b"\xff%d" % number,
            None if number % 2 else b"k",
            headers=[("a", b"1"), ("a", None)] if number == 5 else None,
            timestamp=1_700_000_000_000 + number,
            partition=number % 2,
        )
    connection.flush()
    producer = Producer({"bootstrap.servers": connection.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(2):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, b"%d" % each, partition=each % 2, timestamp=1_700_000_001_000 + each)
        producer.abort_transaction(30) if number == 0 else producer.commit_transaction(30)
    connection.admin().change_config(topic, {"message.timestamp.type": "LogAppendTime"})
    connection.send(topic, "appended", partition=0).result(10)
    return topic


def test_both_engines_give_the_same_rows(spark: SparkSession, log_url: str, mixed: str, tmp_path: Path) -> None:
    if not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not on the class path: run `penstock spark jars`")
    ours = read_batch(spark, log_url, mixed, engine="python")
    theirs = read_batch(spark, log_url, mixed, engine="native")
    assert ours.schema == RECORD
    assert [(field.name, field.dataType) for field in theirs.schema] == [(each.name, each.dataType) for each in RECORD]
    rows = sorted(ours.collect(), key=lambda row: (row.partition, row.pointer))
    assert len(rows) == 21
    assert rows == sorted(theirs.collect(), key=lambda row: (row.partition, row.pointer))
    streamed = [
        row
        for frame in ("python", "native")
        for batch in run(read_stream(spark, log_url, mixed, engine=frame), tmp_path / frame)
        for row in batch
    ]
    assert sorted(streamed, key=lambda row: (row.partition, row.pointer)) == [row for row in rows for _ in range(2)]


def test_a_run_with_a_limit_goes_on_where_the_last_one_ended(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path, engine: Engine
) -> None:
    connection.create_topic(topic, 2)
    send_numbers(connection, topic, range(100), 2)
    frame = read_stream(spark, log_url, topic, engine=engine, max_records_per_batch=40)
    first = run(frame, tmp_path / "checkpoint")
    assert [len(rows) for rows in first] == [40, 40, 20]
    assert numbers([row for rows in first for row in rows]) == list(range(100))
    assert run(frame, tmp_path / "checkpoint") == []
    connection.admin().add_partitions(topic, 3)
    with penstock.connect(log_url) as newcomer:
        send_numbers(newcomer, topic, range(100, 130), 3)
    second = run(frame, tmp_path / "checkpoint")
    assert numbers([row for rows in second for row in rows]) == list(range(100, 130))


def test_partitions_that_a_topic_gets_while_a_query_runs_are_read(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path
) -> None:
    connection.create_topic(topic, 1)
    seen: list[int] = []
    arrived = {10: threading.Event(), 40: threading.Event()}

    def take(rows: DataFrame, _: int) -> None:
        seen.extend(int(row["value"]) for row in rows.collect())
        for count, event in arrived.items():
            if len(seen) >= count:
                event.set()

    frame = read_stream(spark, log_url, topic, engine="python", start="latest")
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        send_numbers(connection, topic, range(10))
        assert arrived[10].wait(60), query.exception()
        connection.admin().add_partitions(topic, 3)
        with penstock.connect(log_url) as newcomer:
            send_numbers(newcomer, topic, range(10, 40), 3)
        assert arrived[40].wait(60), query.exception()
        query.processAllAvailable()
        assert sorted(seen) == list(range(40))
        progress = query.lastProgress
        assert progress is not None
        latest = progress["sources"][0]["latestOffset"]
        assert (json.loads(latest) if isinstance(latest, str) else latest) == {topic: {"0": 20, "1": 10, "2": 10}}
    finally:
        query.stop()


def test_expired_records_end_the_query_with_an_error_that_says_what_to_do(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path
) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(10))
    run(read_stream(spark, log_url, topic, engine="python"), tmp_path / "checkpoint")
    send_numbers(connection, topic, range(10, 20))
    delete_before(connection, topic, {0: 15})
    with pytest.raises(PySparkException, match=r"RecordsExpiredError: .*has pointer 10, .* has 15.*on_expired"):
        run(read_stream(spark, log_url, topic, engine="python"), tmp_path / "checkpoint")
    batches = run(read_stream(spark, log_url, topic, engine="python", on_expired="earliest"), tmp_path / "checkpoint")
    assert numbers([row for rows in batches for row in rows]) == list(range(15, 20))


def test_a_table_is_fresh_in_every_batch_it_is_joined_to(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path
) -> None:
    prices = f"{topic}.prices"
    connection.create_topic(topic, 1)
    connection.create_topic(prices, 2, {"cleanup.policy": "compact"})
    price = {"a": 1, "b": 2}
    for key, value in price.items():
        connection.send(prices, str(value), key)
    for key in "abab":
        connection.send(topic, "order", key)
    connection.flush()
    table = read_table(spark, log_url, prices).selectExpr("key", "cast(value as string) as price")
    orders = read_stream(spark, log_url, topic, engine="python", max_records_per_batch=2)
    found: list[dict[str, str]] = []

    def take(rows: DataFrame, _: int) -> None:
        found.append({bytes(row.key).decode(): row.price for row in rows.collect()})
        # Between two batches prices change, one is gone, and nobody restarts anything.
        connection.send(prices, "10", "a")
        connection.send(prices, None, "b")
        connection.flush()

    joined = orders.join(table, "key")
    query = joined.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert found == [{"a": "1", "b": "2"}, {"a": "10"}]


def doubling_decoder() -> Any:
    """A decoder that travels by value, as one of the main program would."""

    class Doubling:
        schema = StructType([StructField("twice", LongType()), StructField("pointer", LongType())])

        def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            assert str(batch.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
            rows = [row for row in batch.to_pylist() if row["value"].isdigit()]
            columns = [[2 * int(row["value"]) for row in rows], [row["pointer"] for row in rows]]
            return pa.RecordBatch.from_arrays([pa.array(each, pa.int64()) for each in columns], ["twice", "pointer"])

    return Doubling()


def test_a_decoder_makes_typed_columns_and_leaves_out_what_it_cannot_read(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, tmp_path: Path, engine: Engine
) -> None:
    connection.create_topic(topic, 1)
    for value in ("1", "x", "3"):
        connection.send(topic, value, "same key")
    connection.flush()
    decoder = doubling_decoder()
    expected = [Row(twice=2, pointer=0), Row(twice=6, pointer=2)]
    assert read_batch(spark, log_url, topic, engine=engine, decoder=decoder).collect() == expected
    frame = read_stream(spark, log_url, topic, engine=engine, decoder=decoder)
    assert frame.schema == decoder.schema
    assert run(frame, tmp_path / "checkpoint") == [expected]
    if engine == "python":
        assert read_table(spark, log_url, topic, decoder=decoder).collect() == expected[1:]


def test_batches_lie_between_their_positions(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, engine: Engine
) -> None:
    connection.create_topic(topic, 1)
    for number in range(10):
        connection.send(topic, str(number), timestamp=1_700_000_000_000 + 1000 * number)
    connection.flush()
    since = penstock.Position.at_time(1_700_000_004_000)
    chosen = read_batch(spark, log_url, topic, engine=engine, start=since, end={0: 8})
    assert numbers(chosen.collect()) == [4, 5, 6, 7]
    if engine == "python":
        assert read_batch(spark, log_url, topic, engine=engine, start="latest").collect() == []
    else:
        with pytest.raises(ConfigError, match="cannot begin at the end"):
            read_batch(spark, log_url, topic, engine=engine, start="latest")


def test_an_empty_topic_is_an_empty_frame(
    spark: SparkSession, connection: Connection, log_url: str, topic: str, engine: Engine
) -> None:
    connection.create_topic(topic, 1)
    assert read_batch(spark, log_url, topic, engine=engine).collect() == []


@pytest.fixture
def placed(connection: Connection, log_url: str, topic: str) -> dict[str, str]:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(3))
    return {"url": log_url, "topic": topic}


def test_the_format_serves_plain_spark_without_an_import(spark: SparkSession, placed: dict[str, str]) -> None:
    frame = spark.read.format("penstock").options(**placed).load()
    assert numbers(frame.collect()) == [0, 1, 2]
    some = spark.read.format("penstock").options(**placed, columns="value,pointer").load()
    assert some.columns == ["value", "pointer"]
    assert numbers(some.collect()) == [0, 1, 2]


def test_topics_are_views_and_tables_of_spark_sql(
    spark: SparkSession, placed: dict[str, str], connection: Connection
) -> None:
    url, topic = placed["url"], placed["topic"]
    view, table = f"view_of_{topic}", f"table_of_{topic}"
    spark.sql(f"CREATE TEMPORARY VIEW `{view}` USING penstock OPTIONS (url '{url}', topic '{topic}')")
    (row,) = spark.sql(f"SELECT count(*) AS records, max(pointer) AS last FROM `{view}`").collect()
    assert (row.records, row.last) == (3, 2)
    copied = f"{topic}.copied"
    spark.sql(f"CREATE TABLE `{table}` (key binary, value binary) USING penstock")
    try:
        insert = f"INSERT INTO `{table}` WITH (url = '{url}', topic = '{copied}') SELECT key, value FROM `{view}`"
        spark.sql(insert)
    finally:
        spark.sql(f"DROP TABLE `{table}`")
        spark.catalog.dropTempView(view)
    assert [record.value for record in connection.read(copied)] == [record.value for record in connection.read(topic)]


CONNECTED = """
import sys
from pyspark.sql import SparkSession
from penstock.errors import ConfigError
from penstock.spark import Pipeline, read_batch

url, topic, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
options = {"url": url, "topic": topic}
print("read", spark.read.format("penstock").options(**options).load().count())
records = spark.readStream.format("penstock").options(**options).load().select("key", "value")
writer = records.writeStream.format("penstock").options(url=url, topic=f"{topic}.through")
query = writer.option("checkpointLocation", folder).trigger(availableNow=True).start()
query.awaitTermination(120)
print("error", query.exception())
for refused in (lambda: read_batch(spark, url, topic), lambda: Pipeline("connected", url, spark=spark)):
    try:
        refused()
    except ConfigError as error:
        print(error)
spark.stop()
"""


def test_the_format_works_in_spark_connect_and_functions_that_need_the_jvm_say_so(
    placed: dict[str, str], connection: Connection, tmp_path: Path
) -> None:
    for name in ("grpc", "grpc_status"):
        pytest.importorskip(name, reason="Spark Connect needs pip install 'pyspark[connect]'")
    command = [sys.executable, "-c", CONNECTED, placed["url"], placed["topic"], str(tmp_path / "checkpoint")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "read 3" in done.stdout
    assert "error None" in done.stdout
    assert done.stdout.count("this session has no JVM (it uses Spark Connect, or was stopped)") == 2
    through = [record.value for record in connection.read(f"{placed['topic']}.through")]
    assert through == [record.value for record in connection.read(placed["topic"])]


def test_options_of_the_format_that_are_wrong_are_refused_in_its_words(
    spark: SparkSession, placed: dict[str, str]
) -> None:
    with pytest.raises(PySparkException, match="no option 'topik'"):
        spark.read.format("penstock").options(**placed, topik="x").load().collect()
    with pytest.raises(PySparkException, match=r"has the schema struct<.*omit \.schema"):
        spark.read.format("penstock").schema("value string").options(**placed).load().collect()


def test_what_cannot_be_read_is_told_at_once(
    spark: SparkSession, connection: Connection, log_url: str, topic: str
) -> None:
    with pytest.raises(UnknownTopicError, match=topic):
        read_stream(spark, log_url, topic)
    with pytest.raises(BrokerUnavailableError, match="nothing answers"):
        read_stream(spark, "kafka://127.0.0.1:1", topic, client={"connect_timeout_s": 2})
    with pytest.raises(ConfigError, match="exists only in this process"):
        read_batch(spark, "memory:x", topic)
    connection.create_topic(topic, 1)
    with pytest.raises(ConfigError, match="engine='fast' is not allowed"):
        read_batch(spark, log_url, topic, engine="fast")  # type: ignore[arg-type]


def test_the_connector_refuses_what_it_cannot_do(
    spark: SparkSession, connection: Connection, log_url: str, topic: str
) -> None:
    if not has_connector(spark):
        pytest.skip("Spark's Kafka connector is not on the class path: run `penstock spark jars`")
    connection.create_topic(topic, 1)
    with pytest.raises(ConfigError, match="no limit in bytes"):
        read_stream(spark, log_url, topic, engine="native", max_bytes_per_batch=5)
    with pytest.raises(ConfigError, match="not at 'latest'"):
        read_stream(spark, log_url, topic, engine="native", on_expired="latest")
    with pytest.raises(ConfigError, match=r"'debug' has no counterpart"):
        read_stream(spark, log_url, topic, engine="native", client={"librdkafka": {"debug": "all"}})
