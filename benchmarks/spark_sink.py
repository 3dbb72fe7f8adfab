"""Writing a batch of Spark into a topic: exactly-once, at-least-once, and by Spark's own Kafka sink, on one log.

Large exactly-once batches are written by the tasks; that all rows pass through the driver instead is timed beside it.
`python -m benchmarks spark-sink` writes the same rows, which wait in Spark's memory, through each in turn. All write to
the embedded log with acks=all, which is fsync before the answer. Small batches are timed as well: there, what counts is
what a batch costs that has next to no rows.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock
from benchmarks.report import Figure, Report, Row
from penstock.model import Guarantee
from penstock.spark import TopicTarget
from penstock.spark.sessions.jars import connector_jars
from penstock.spark.sessions.opening import session
from penstock.spark.sink.target import Delivery, QueryIdentity
from penstock.spark.sink.task_transactions import PARALLEL_ABOVE_BYTES

ROWS: Final = 400_000
FEW: Final = 100
SMALL_BATCHES: Final = 15
VALUE_BYTES: Final = 100
PARTITIONS: Final = 2

DRIVER: Final = "exactly-once through the driver"

Write = Callable[[DataFrame], None]


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    rows = max(FEW, int(ROWS * scale))
    spark = session("benchmark of sinks", master="local[2]", conf={"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-sink-") as folder:
            url = f"log:{Path(folder) / 'log'}"
            with penstock.connect(url) as connection:
                connection.create_topic("native", PARTITIONS)
                measured(report, say, spark, url, connection.bootstrap, Path(folder), rows, rounds)
    finally:
        spark.stop()


def measured(
    report: Report,
    say: Callable[[str], None],
    spark: SparkSession,
    url: str,
    bootstrap: str,
    folder: Path,
    rows: int,
    rounds: int,
) -> None:
    many, few = made(spark, rows), made(spark, FEW)
    once = opened(url, folder, "exactly-once", Guarantee.EXACTLY_ONCE)
    driver = opened(url, folder, "by-the-driver", Guarantee.EXACTLY_ONCE, parallel_above_bytes=None)
    least = opened(url, folder, "at-least-once", Guarantee.AT_LEAST_ONCE)
    ways: dict[str, Write] = {
        "exactly-once": numbered(once),
        "at-least-once": numbered(least),
        DRIVER: numbered(driver),
    }
    if connector_jars():
        ways["Spark's Kafka sink"] = lambda frame: native(frame, bootstrap)
    else:
        report.notes.append("spark sink: Spark's Kafka connector is missing: run `penstock spark jars`")
    large: dict[str, list[float]] = {name: [] for name in ways}
    small: dict[str, list[float]] = {name: [] for name in ways}
    for write in ways.values():
        write(few)
        write(many)
    for _ in range(rounds):
        for name, write in ways.items():
            large[name].append(rows / seconds(write, many))
            small[name] += [1000 * seconds(write, few) for _ in range(SMALL_BATCHES)]
            say(f"   {name}: {large[name][-1]:,.0f} rows/s, {statistics.median(small[name]):.0f} ms for {FEW} rows")
    for delivery in (once, driver, least):
        delivery.close()
    tell(report, large, small, rows)


def tell(report: Report, large: dict[str, list[float]], small: dict[str, list[float]], rows: int) -> None:
    what = f"{rows:,} rows of {VALUE_BYTES} B in one batch into {PARTITIONS} partitions"
    speed = {name: statistics.median(taken) for name, taken in large.items()}
    for name, taken in small.items():
        report.figures.append(Figure(f"spark sink, {FEW} rows, {name}, p50", statistics.median(taken), "ms"))
    tasks = "at-least-once from the same tasks"
    report.rows.append(
        Row(f"spark sink, {what}", speed["exactly-once"], "exactly-once", speed["at-least-once"], tasks, "rows/s", 0.7)
    )
    report.figures.append(Figure(f"spark sink, {what}, {DRIVER}", speed[DRIVER], "rows/s"))
    peer = "Spark's Kafka sink"
    for name in ("exactly-once", "at-least-once"):
        if peer in speed:
            report.rows.append(Row(f"spark sink, {what}", speed[name], name, speed[peer], peer, "rows/s", 0.7))
        else:
            report.figures.append(Figure(f"spark sink, {what}, {name}", speed[name], "rows/s"))
    report.notes.append("spark sink: local[2], the embedded log, acks=all with fsync before the answer, no compression")


def made(spark: SparkSession, rows: int) -> DataFrame:
    """Rows that wait in memory, so that making them is not measured."""
    number = F.col("id").cast("string")
    value = F.rpad(number, VALUE_BYTES, "x").cast("binary")
    frame = spark.range(0, rows, 1, PARTITIONS).select(number.cast("binary").alias("key"), value.alias("value"))
    frame = frame.persist()
    frame.count()
    return frame


def opened(
    url: str, folder: Path, name: str, guarantee: Guarantee, parallel_above_bytes: int | None = PARALLEL_ABOVE_BYTES
) -> Delivery:
    target = TopicTarget(
        url, name, partitions=PARTITIONS, guarantee=guarantee, parallel_above_bytes=parallel_above_bytes
    )
    return target.open(QueryIdentity("benchmark", name, name, str(folder / f"{name}-staging")))


def numbered(delivery: Delivery) -> Write:
    """Delivers each frame as the next batch."""
    number = 0

    def write(frame: DataFrame) -> None:
        nonlocal number
        delivery.deliver(frame, number)
        number += 1

    return write


def native(frame: DataFrame, bootstrap: str) -> None:
    writer = frame.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("kafka.acks", "all").option("topic", "native").save()


def seconds(write: Write, frame: DataFrame) -> float:
    begun_s = time.perf_counter()
    write(frame)
    return time.perf_counter() - begun_s
