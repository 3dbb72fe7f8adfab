"""From a log through windows into a log, exactly-once, beside the same query on Apache Kafka by Spark's own connector.

`python -m benchmarks spark-windows` sends the same orders to both, and counts them by customer in windows of ten
seconds of event time. Ours reads segment files and publishes each batch in one transaction, with fsync before the
answer; theirs reads and writes through Spark's Kafka source and sink, which writes at least once, against a Kafka that
does not flush. Both run in one session, in turns, over all records at once (AvailableNow, in batches of a fifth), with
fresh checkpoints."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock
from benchmarks import servers
from benchmarks.report import Report, Row
from penstock.errors import ConfigError
from penstock.spark.pipeline import Pipeline
from penstock.spark.sessions.jars import connector_jars
from penstock.spark.sessions.opening import session
from tools.parts import PartMissing

RECORDS: Final = 500_000
BATCHES: Final = 5
CUSTOMERS: Final = 1_000
PER_SECOND: Final = 1_000
"""Of event time: so many orders make one second."""
PARTITIONS: Final = 2
TOPIC: Final = "orders"
P = ParamSpec("P")


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    records = max(1_000, int(RECORDS * scale))
    if not connector_jars():
        report.notes.append("spark windows: Spark's Kafka connector is missing: run `penstock spark jars`")
        return
    spark = session("benchmark of windows", master="local[2]", conf={"spark.driver.memory": "2g"}, connector=True)
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-windows-") as name:
            folder = Path(name)
            with penstock.connect(f"log:{folder / 'log'}") as connection:
                connection.create_topic(TOPIC, PARTITIONS)
                send(connection.bootstrap, records)
                kafka = servers.kafka(folder / "kafka")
                kafka.start()
                try:
                    send(kafka.server.bootstrap, records)
                    compare(report, say, spark, folder, connection.url, kafka.server.bootstrap, records, rounds)
                finally:
                    kafka.stop()
    except PartMissing as missing:
        report.notes.append(f"spark windows: {missing}")
    finally:
        spark.stop()


def compare(
    report: Report,
    say: Callable[[str], None],
    spark: SparkSession,
    folder: Path,
    url: str,
    bootstrap: str,
    records: int,
    rounds: int,
) -> None:
    speeds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(rounds + 1):
        ours_s = seconds(ours, spark, url, number, records)
        theirs_s = seconds(theirs, spark, bootstrap, folder, number, records)
        say(f"   round {number}: ours {records / ours_s:,.0f} rows/s, theirs {records / theirs_s:,.0f} rows/s")
        if number:  # the first round warms both up
            speeds["ours"].append(records / ours_s)
            speeds["theirs"].append(records / theirs_s)
    report.rows.append(
        Row(
            f"log to windows to log, {records:,} JSON orders, {CUSTOMERS:,} customers, 10 s windows",
            statistics.median(speeds["ours"]),
            "embedded log, exactly-once, fsync",
            statistics.median(speeds["theirs"]),
            "Kafka connector on Apache Kafka, at-least-once, no fsync",
            "rows/s",
            1.0,
        )
    )


def send(bootstrap: str, records: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    begin_ms = int(time.time() * 1000) - records * 1000 // PER_SECOND  # what is older than a week would be deleted
    for number in range(records):
        at_ms = begin_ms + number * 1000 // PER_SECOND
        customer = f"customer-{number * 7919 % CUSTOMERS}"
        value = json.dumps({"customer": customer, "cents": number % 10_000})
        while True:
            try:
                producer.produce(TOPIC, value, customer, timestamp=at_ms)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        raise ConfigError("not all records were stored")


def spent(records: DataFrame) -> DataFrame:
    """The query itself, the same for both."""
    order = F.from_json(F.col("value").cast("string"), "customer string, cents bigint")
    return (
        records.select("timestamp", order.alias("order"))
        .select("timestamp", "order.*")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "10 seconds"), "customer")
        .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
    )


def ours(spark: SparkSession, url: str, number: int, records: int) -> None:
    with Pipeline(f"windows-{number}", url, spark=spark) as pipeline:
        pipeline.write(
            spent(pipeline.read(TOPIC, max_records_per_batch=records // BATCHES)), f"spent-{number}", key="customer"
        )
        pipeline.run(once=True)


def theirs(spark: SparkSession, bootstrap: str, folder: Path, number: int, records: int) -> None:
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records // BATCHES)
        .load()
    )
    rows = spent(frame).select(F.col("customer").alias("key"), F.to_json(F.struct("*")).alias("value"))
    query = (
        rows.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", f"spent-{number}")
        .option("checkpointLocation", str(folder / f"theirs-{number}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def seconds(work: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> float:
    begun_s = time.perf_counter()
    work(*arguments, **options)
    return time.perf_counter() - begun_s
