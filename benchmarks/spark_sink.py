"""Writing a batch of Spark into a topic: exactly-once, at-least-once, and by Spark's own Kafka sink, on one log.

Large exactly-once batches are written by the tasks; that all rows pass through the driver instead is timed beside it.
`python -m benchmarks spark-sink` writes the same rows, which wait in Spark's memory, through each in turn. All write to
the embedded log with acks=all, which is fsync before the answer.

Small batches are those of streaming queries whose source makes its rows itself. What Spark reports of each batch as the
time to plan it and to write it is compared: offset log, commit log and triggers are the same for all.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

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
SMALL_BATCHES: Final = 20
"""So many are timed in each round, after half as many to warm up."""
SMALL_BATCHES_TIMEOUT_S: Final = 120.0
VALUE_BYTES: Final = 100
PARTITIONS: Final = 2

DRIVER: Final = "exactly-once through the driver"
PEER: Final = "Spark's Kafka sink"

Write = Callable[[DataFrame], None]


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    rows = max(FEW, int(ROWS * scale))
    spark = session("benchmark of sinks", master="local[2]", conf={"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-sink-") as folder:
            url = f"log:{Path(folder) / 'log'}"
            with penstock.connect(url) as connection:
                for topic in ("native", "native-small"):
                    connection.create_topic(topic, PARTITIONS)
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
    many = made(spark, rows)
    once = opened(url, folder, "exactly-once", Guarantee.EXACTLY_ONCE)
    driver = opened(url, folder, "by-the-driver", Guarantee.EXACTLY_ONCE, parallel_above_bytes=None)
    least = opened(url, folder, "at-least-once", Guarantee.AT_LEAST_ONCE)
    ways: dict[str, Write] = {
        "exactly-once": numbered(once),
        "at-least-once": numbered(least),
        DRIVER: numbered(driver),
    }
    small = [SmallBatches(ours, url, folder) for ours in ("exactly-once", "at-least-once")]
    if connector_jars():
        ways[PEER] = lambda frame: native(frame, bootstrap)
        small.append(SmallBatches(PEER, bootstrap, folder))
    else:
        report.notes.append("spark sink: Spark's Kafka connector is missing: run `penstock spark jars`")
    large: dict[str, list[float]] = {name: [] for name in ways}
    for write in ways.values():
        write(many)
    for number in range(rounds + 1):
        for name, write in ways.items():
            if number:
                large[name].append(rows / seconds(write, many))
                say(f"   {name}: {large[name][-1]:,.0f} rows/s")
        for each in small:
            took_ms = each.measure(spark)
            if number:  # the first round warms all up
                each.taken += took_ms
                say(f"   {each.name}: {statistics.median(took['write'] for took in took_ms):.0f} ms for {FEW} rows")
    for delivery in (once, driver, least):
        delivery.close()
    tell(report, large, rows)
    tell_small(report, small)


def tell(report: Report, large: dict[str, list[float]], rows: int) -> None:
    what = f"{rows:,} rows of {VALUE_BYTES} B in one batch into {PARTITIONS} partitions"
    speed = {name: statistics.median(taken) for name, taken in large.items()}
    tasks = "at-least-once from the same tasks"
    report.rows.append(
        Row(f"spark sink, {what}", speed["exactly-once"], "exactly-once", speed["at-least-once"], tasks, "rows/s", 0.7)
    )
    report.figures.append(Figure(f"spark sink, {what}, {DRIVER}", speed[DRIVER], "rows/s"))
    for name in ("exactly-once", "at-least-once"):
        if PEER in speed:
            report.rows.append(Row(f"spark sink, {what}", speed[name], name, speed[PEER], PEER, "rows/s", 0.7))
        else:
            report.figures.append(Figure(f"spark sink, {what}, {name}", speed[name], "rows/s"))
    report.notes.append("spark sink: local[2], the embedded log, acks=all with fsync before the answer, no compression")


def tell_small(report: Report, small: list[SmallBatches]) -> None:
    what = f"spark sink, a streaming batch of {FEW} rows, p50"
    peer = next((each for each in small if each.name == PEER), None)
    for each in small:
        if peer is None:
            report.figures.append(Figure(f"{what} to plan and write it, {each.name}", each.p50("write"), "ms"))
        elif each is not peer:
            row = Row(
                f"{what} to plan and write it",
                each.p50("write"),
                each.name,
                peer.p50("write"),
                PEER,
                "ms",
                1.5,
                lower_is_better=True,
            )
            report.rows.append(row)
        report.figures.append(Figure(f"{what} of the whole batch, {each.name}", each.p50("whole"), "ms"))


@dataclass(slots=True)
class SmallBatches:
    """A streaming query with small batches, which goes on in each round."""

    name: str
    to: str
    """The URL of the log, or its address for Spark's sink."""
    folder: Path
    taken: list[dict[str, float]] = field(default_factory=list)
    """The milliseconds of each batch."""

    def p50(self, part: str) -> float:
        return statistics.median(each[part] for each in self.taken)

    def measure(self, spark: SparkSession) -> list[dict[str, float]]:
        """Run some batches, and time the last ones."""
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", FEW)
        writer = as_records(rows.option("numPartitions", PARTITIONS).load(), "value").writeStream
        writer = writer.option("checkpointLocation", str(self.folder / f"small-{self.name}"))
        delivery: Delivery | None = None
        if self.name == PEER:
            writer = writer.format("kafka").option("kafka.bootstrap.servers", self.to).option("kafka.acks", "all")
            writer = writer.option("topic", "native-small")
        else:
            target = delivery = opened(self.to, self.folder, f"small-{self.name}", Guarantee(self.name))

            def deliver(frame: DataFrame, number: int) -> None:
                target.deliver(frame, number)

            writer = writer.foreachBatch(deliver)
        query = writer.trigger(processingTime="50 milliseconds").start()
        try:
            return self._timed(query)
        finally:
            query.stop()
            if delivery is not None:
                delivery.close()

    def _timed(self, query: StreamingQuery) -> list[dict[str, float]]:
        wanted, until_s = SMALL_BATCHES + SMALL_BATCHES // 2, time.monotonic() + SMALL_BATCHES_TIMEOUT_S
        while len(query.recentProgress) < wanted or query.status["isTriggerActive"]:
            if (error := query.exception()) is not None:
                raise error
            if time.monotonic() > until_s:
                raise TimeoutError(f"{self.name}: {wanted} small batches took more than {SMALL_BATCHES_TIMEOUT_S} s")
            time.sleep(0.01)
        durations: list[dict[str, Any]] = [each.durationMs for each in query.recentProgress[-SMALL_BATCHES:]]
        return [
            {"write": float(each["queryPlanning"] + each["addBatch"]), "whole": float(each["triggerExecution"])}
            for each in durations
        ]


def made(spark: SparkSession, rows: int) -> DataFrame:
    """Rows that wait in memory, so that making them is not measured."""
    frame = as_records(spark.range(0, rows, 1, PARTITIONS), "id").persist()
    frame.count()
    return frame


def as_records(frame: DataFrame, column: str) -> DataFrame:
    number = F.col(column).cast("string")
    value = F.rpad(number, VALUE_BYTES, "x").cast("binary")
    return frame.select(number.cast("binary").alias("key"), value.alias("value"))


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
