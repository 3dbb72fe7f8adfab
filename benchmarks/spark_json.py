"""Typed JSON to columns on Spark: Penstock's decoder, beside `from_json` on Spark's own Kafka connector.

`python -m benchmarks spark-json` sends orders to an embedded log once; then all ways read the same records, in turn, to
a sink that throws rows away. Every way gives the same columns: the fields of the order, and what is known about its
record. The decoder checks every value as the library does and keeps what is wrong in dead letters; `from_json` gives
null.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from benchmarks.report import Report, Row
from penstock.spark.reading import read_batch
from penstock.spark.sessions.opening import session
from penstock.spark.values.columns import ABOUT_A_RECORD
from penstock.spark.values.decoding import Decoder
from penstock.spark.values.types import columns_of

RECORDS: Final = 600_000
ROUNDS: Final = 3
PARTITIONS: Final = 2
SEED: Final = 1
BAR: Final = 1.0


@dataclasses.dataclass
class Order:
    id: int
    customer: str
    amount: float
    at: datetime.datetime
    items: int
    note: str | None = None
    paid: bool = False


ORDERS: Final = ps.Topic("orders", Order, key=lambda order: order.customer, partitions=PARTITIONS)


def run(report: Report, say: Callable[[str], None], *, rounds: int = ROUNDS, scale: float = 1.0) -> None:
    records = max(1000, int(RECORDS * scale))
    spark = session("typed JSON", master=f"local[{min(2, os.cpu_count() or 1)}]", conf={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory() as folder:
        url = f"log:{folder}/data"
        with ps.connect(url) as stream:
            size_bytes = _send(stream, records)
            say(f"  {records:,} orders of {size_bytes:.0f} B")
            samples = _measure(spark, url, rounds, records, say)
    spark.stop()
    for unit in ("rows/s", "rows/CPU-s"):
        rates = {name: statistics.median(sample[unit] for sample in each) for name, each in samples.items()}
        peer = rates.pop("from_json")
        for name, rate in rates.items():
            say(f"    {name}: {rate:,.0f} {unit}, {rate / peer:.2f}x from_json's {peer:,.0f}")
            report.rows.append(Row("typed JSON to columns", rate, name, peer, "native, from_json", unit, BAR))
    report.notes.append(
        f"Typed JSON to columns: {records:,} orders of {size_bytes:.0f} B in {PARTITIONS} partitions of an embedded "
        f"log, batch read to the noop sink, median of {rounds} rounds in turn after one to warm up; pyspark "
        f"{version('pyspark')}. rows/CPU-s counts the time of the driver, the JVM and the Python workers on all cores."
    )


def _send(stream: ps.Connection, records: int) -> float:
    stream.create_topic(ORDERS.name, PARTITIONS)
    chance = random.Random(SEED)
    start = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
    size_bytes = 0
    for number in range(records):
        order = Order(
            number,
            f"customer-{chance.randrange(10_000)}",
            round(chance.random() * 100, 2),
            start + datetime.timedelta(microseconds=chance.randrange(10**11)),
            chance.randrange(9),
            None if number % 2 else "leave it at the door",
            number % 3 == 0,
        )
        record = ORDERS.new_record(order)
        size_bytes += len(record.value or b"")
        stream.send(ORDERS.name, record.value, key=record.key)
    stream.flush()
    return size_bytes / records


def _measure(
    spark: SparkSession, url: str, rounds: int, records: int, say: Callable[[str], None]
) -> dict[str, list[dict[str, float]]]:
    decoder = Decoder(ORDERS, url=url, group="benchmark")
    ways: dict[str, Callable[[], DataFrame]] = {
        "python engine, decoder": lambda: read_batch(spark, url, ORDERS.name, engine="python", decoder=decoder),
        "native engine, decoder": lambda: read_batch(spark, url, ORDERS.name, engine="native", decoder=decoder),
        "from_json": lambda: _by_from_json(spark, url),
    }
    _check(ways)
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for round_number in range(rounds + 1):
        for name, way in ways.items():
            began_s, began_cpu_s = time.perf_counter(), _cpu_s()
            way().write.format("noop").mode("overwrite").save()
            took = {"rows/s": time.perf_counter() - began_s, "rows/CPU-s": _cpu_s() - began_cpu_s}
            rates = {unit: records / took_s for unit, took_s in took.items()}
            when = "warm-up" if round_number == 0 else f"round {round_number}"
            say(f"      {when}: {name}: " + ", ".join(f"{rate:,.0f} {unit}" for unit, rate in rates.items()))
            if round_number:
                samples[name].append(rates)
    return samples


def _cpu_s() -> float:
    """The time that this process and all below it, the JVM and Python workers, have had on the cores."""
    parents: dict[int, int] = {}
    used_s: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(fields[1])
        used_s[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used_s[pid] for pid in ours)


def _by_from_json(spark: SparkSession, url: str) -> DataFrame:
    read = read_batch(spark, url, ORDERS.name, engine="native")
    order = F.from_json(F.col("value").cast("string"), columns_of(ORDERS)).alias("order")
    return read.select(order, *ABOUT_A_RECORD).select("order.*", *ABOUT_A_RECORD)


def _check(ways: dict[str, Callable[[], DataFrame]]) -> None:
    """All give the same rows, or there is nothing to compare."""
    sums = {
        name: way().agg(
            F.count("*"), F.sum("id"), F.sum("items"), F.min("at"), F.sum(F.hash("customer", "note", "paid"))
        )
        for name, way in ways.items()
    }
    found = {name: tuple(frame.collect()[0]) for name, frame in sums.items()}
    if len(set(found.values())) != 1:
        raise SystemExit(f"the ways do not read the same orders: {found}")
