"""Large batches from a Spark cluster of two workers into a topic: their speed, and the memory that the driver needs.

`python -m benchmarks spark-cluster-sink` starts a master and two workers of one core each. Both guarantees write the
same rows, which wait in the memory of the executors, from the same tasks, in turn. Then batches of 100,000, 1,000,000
and 10,000,000 rows are written exactly-once, and the peak memory of the driver's two processes is told for each, which
must not grow with the rows.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock
from benchmarks.report import Figure, Report, Row
from benchmarks.spark_sink import VALUE_BYTES, made, numbered, opened, seconds
from penstock.model import Guarantee
from penstock.spark.sessions.opening import session
from tests.spark.cluster.standalone import HOST, Standalone

ROWS: Final = 1_000_000
BATCHES: Final = (100_000, 1_000_000, 10_000_000)
MOST_GROWTH: Final = 1.2
"""The driver's peak in the largest batch may be so many times that in the smallest."""
TASKS: Final = 8
CONF: Final = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "640m",
    "spark.executor.memory": "768m",
    "spark.executor.cores": "1",
}


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3, scale: float = 1.0) -> None:
    """Scale multiplies all numbers of rows."""
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-sink-") as name:
        folder = Path(name)
        with Standalone(folder / "spark", memory_mb=1536) as cluster:
            spark = session("benchmark of a cluster", master=cluster.url, conf=CONF)
            try:
                measure_speed(report, say, spark, folder, round(ROWS * scale), rounds)
                measure_memory(report, say, spark, folder, [round(rows * scale) for rows in BATCHES])
            finally:
                spark.stop()
    report.notes.append(
        "spark cluster sink: a standalone cluster of two workers with one core each, the embedded log, acks=all with "
        "fsync before the answer, no compression"
    )


def measure_speed(
    report: Report, say: Callable[[str], None], spark: SparkSession, folder: Path, rows: int, rounds: int
) -> None:
    url = f"log:{folder / 'log'}"
    with penstock.connect(url):
        frame = made(spark, rows)
        deliveries = {
            "exactly-once": opened(url, folder, "exactly-once", Guarantee.EXACTLY_ONCE, parallel_above_bytes=0),
            "at-least-once": opened(url, folder, "at-least-once", Guarantee.AT_LEAST_ONCE),
        }
        writes = {way: numbered(delivery) for way, delivery in deliveries.items()}
        for write in writes.values():
            write(frame)
        found: dict[str, list[float]] = {way: [] for way in writes}
        for _ in range(rounds):
            for way, write in writes.items():
                found[way].append(rows / seconds(write, frame))
                say(f"   {way}: {found[way][-1]:,.0f} rows/s")
        for delivery in deliveries.values():
            delivery.close()
        frame.unpersist()
    speed = {way: statistics.median(taken) for way, taken in found.items()}
    what = f"spark cluster sink, {rows:,} rows of {VALUE_BYTES} B in one batch, two workers"
    tasks = "at-least-once from the same tasks"
    report.rows.append(Row(what, speed["exactly-once"], "exactly-once", speed["at-least-once"], tasks, "rows/s", 0.7))


def measure_memory(
    report: Report, say: Callable[[str], None], spark: SparkSession, folder: Path, batches: list[int]
) -> None:
    """Rows are made by the tasks that stage them. A small batch comes first: what is loaded once is not counted."""
    url = f"log:{folder / 'memory-log'}"
    jvm = spark._jvm
    assert jvm is not None
    processes = {"Python": "self", "JVM": str(jvm.java.lang.ProcessHandle.current().pid())}
    with penstock.connect(url):
        delivery = opened(url, folder, "memory", Guarantee.EXACTLY_ONCE, parallel_above_bytes=0)
        write = numbered(delivery)
        write(made_by_tasks(spark, batches[0]))
        peaks: list[float] = []
        for rows in batches:
            for process in processes.values():
                Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak is measured from here on
            write(made_by_tasks(spark, rows))
            peaks.append(0.0)
            for name, process in processes.items():
                peak = peak_mb(process)
                peaks[-1] += peak
                say(f"   {rows:,} rows: {name} of the driver peaked at {peak:.0f} MB")
                report.figures.append(Figure(f"spark cluster sink, {rows:,} rows, the driver's {name}", peak, "MB"))
        delivery.close()
    what = f"spark cluster sink, the driver's peak, {batches[-1]:,} rows / {batches[0]:,} rows"
    report.figures.append(Figure(what, peaks[-1] / peaks[0], "x", MOST_GROWTH, lower_is_better=True))


def made_by_tasks(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id").cast("string")
    value = F.rpad(number, VALUE_BYTES, "x").cast("binary")
    return spark.range(0, rows, 1, TASKS).select(number.cast("binary").alias("key"), value.alias("value"))


def peak_mb(process: str) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no VmHWM for process {process}")
