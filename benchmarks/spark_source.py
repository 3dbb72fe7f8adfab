"""An embedded log into Spark: rows a second into a sink that does nothing, beside Parquet files of the same rows and
beside Spark's own Kafka connector.

`python -m benchmarks spark-source` writes records of 100 bytes, no two alike, into one partition, and the same rows, in
all columns, into Parquet files (snappy, Spark's default). Each side then is a streaming query that takes everything
in one batch; the sides take turns, and of each the best round counts. What counts is the batch (`addBatch`): the start
of the query is the same for all but for the Python processes, and stands in a note of its own.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

import penstock
from benchmarks.report import Report, Row
from penstock.spark.reading import read_batch, read_stream
from penstock.spark.sessions.opening import has_connector, session

RECORDS: Final = 3_000_000
KEY_BYTES: Final = 8
VALUE_BYTES: Final = 92
TOPIC: Final = "records"
PARQUET_BAR: Final = 0.6
CONNECTOR_BAR: Final = 0.8


@dataclass(frozen=True, slots=True)
class Round:
    rows: int
    batch_s: float
    query_s: float


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    """Both comparisons. Without the connector on the class path, only that with Parquet."""
    spark = session("benchmarks", master=f"local[{os.cpu_count()}]", conf={"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory() as folder, penstock.connect(f"log:{folder}/log") as connection:
            records = max(1, int(RECORDS * scale))
            _write(connection, records)
            _compare(report, say, spark, Path(folder), connection.url, records, rounds)
    finally:
        spark.stop()


def _write(connection: penstock.Connection, records: int) -> None:
    connection.create_topic(TOPIC, 1)
    producer = Producer({"bootstrap.servers": connection.bootstrap, "linger.ms": 50, "acks": 1})
    noise = os.urandom(1 << 20)  # more than a compressor looks back
    noise_bytes = VALUE_BYTES - KEY_BYTES
    for number in range(records):
        key = b"%08d" % number
        at = number * noise_bytes % (len(noise) - noise_bytes)
        while True:
            try:
                producer.produce(TOPIC, key + noise[at : at + noise_bytes], key)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def _compare(
    report: Report, say: Callable[[str], None], spark: SparkSession, folder: Path, url: str, records: int, rounds: int
) -> None:
    files = str(folder / "parquet")
    written = read_batch(spark, url, TOPIC, engine="python")
    written.write.parquet(files)
    sides: dict[str, Callable[[], DataFrame]] = {
        "log": lambda: read_stream(spark, url, TOPIC, engine="python"),
        "Parquet": lambda: spark.readStream.schema(written.schema).parquet(files),
    }
    if has_connector(spark):
        sides["connector"] = lambda: read_stream(spark, url, TOPIC, engine="native")
    done: dict[str, list[Round]] = {name: [] for name in sides}
    for number in range(rounds + 1):  # the first warms up: the JVM compiles, workers start
        for name, frame in sides.items():
            took = _measured(frame(), folder / f"{name}-{number}")
            assert took.rows == records, (name, took)
            say(f"{name}: {took.rows / took.batch_s:,.0f} rows/s, the query took {took.query_s:.2f} s")
            if number:
                done[name].append(took)
    rate = {name: max(each.rows / each.batch_s for each in took) for name, took in done.items()}
    what = f"log -> noop, {records:,} records of {KEY_BYTES + VALUE_BYTES} B"
    report.rows.append(Row(what, rate["log"], "segments", rate["Parquet"], "Parquet", "rows/s", PARQUET_BAR))
    if "connector" in rate:
        report.rows.append(
            Row(what, rate["log"], "segments", rate["connector"], "Kafka connector", "rows/s", CONNECTOR_BAR)
        )
    else:
        report.notes.append("The Kafka connector was not there: `penstock spark jars` fetches it.")
    starts = {name: min(each.query_s - each.batch_s for each in took) for name, took in done.items()}
    report.notes.append(
        "A query's time outside of its batch: "
        + ", ".join(f"{name} {start_s:.2f} s" for name, start_s in starts.items())
    )


def _measured(frame: DataFrame, checkpoint: Path) -> Round:
    begun_s = time.perf_counter()
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query_s = time.perf_counter() - begun_s
    batches = query.recentProgress
    rows = sum(int(batch["numInputRows"]) for batch in batches)
    return Round(rows, sum(int(batch["durationMs"].get("addBatch", 0)) for batch in batches) / 1000, query_s)
