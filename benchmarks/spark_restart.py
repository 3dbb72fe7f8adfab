"""From kill -9 of a driver to its next result: a supervised pipeline beside plain PySpark, started again at once.

`python -m benchmarks spark-restart` runs the same query on both: orders in JSON, summed by customer, from a topic into
a topic. Ours is run by `penstock run --supervise`, exactly once, with the archive of Spark's classes and its delay
before a restart. Theirs is Spark's Kafka source and sink, at least once, started again when it dies: with the settings
that a newcomer types, and with two shuffle partitions instead of Spark's 200, as ours has. Orders arrive all the time.
The driver and its JVM are killed; the clock stops when a result is there that has an order from after the kill. All
write to one broker that syncs before it answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

import penstock
from benchmarks.report import Figure, Report, Row
from benchmarks.spark_start import penstock as penstock_command
from penstock.spark.sessions.jars import connector_jars
from tests.servers import Penstock

QUERY: Final = """
def summed(records):
    order = F.from_json(F.col("value").cast("string"), "customer string, cents bigint, number bigint")
    orders = records.select(order.alias("order")).select("order.*")
    return orders.groupBy("customer").agg(F.sum("cents").alias("cents"), F.max("number").alias("number"))
"""
OURS: Final = """
from pyspark.sql import functions as F
from penstock.spark import Pipeline, session
{query}
spark = session(master="local[2]")
pipeline = Pipeline("restarts", "kafka://{bootstrap}", checkpoints="{folder}/ours")
pipeline.write(summed(pipeline.read("orders")), "{topic}", key="customer")
"""
PLAIN: Final = """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
{query}
builder = SparkSession.builder.master("local[2]").config("spark.jars", "{jars}")
spark = builder.config("spark.sql.shuffle.partitions", "{partitions}").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
records = (
    spark.readStream.format("kafka").option("kafka.bootstrap.servers", "{bootstrap}")
    .option("subscribe", "orders").option("startingOffsets", "earliest").load()
)
written = summed(records).select(
    F.col("customer").alias("key"), F.to_json(F.struct("customer", "cents", "number")).alias("value")
)
writer = written.writeStream.format("kafka").outputMode("update").option("kafka.bootstrap.servers", "{bootstrap}")
writer.option("topic", "{topic}").option("checkpointLocation", "{folder}/{topic}").start().awaitTermination()
"""
OUR_SIDE: Final = "ours"
SIDES: Final = {
    OUR_SIDE: ("penstock run --supervise, exactly-once", ""),
    "plain": ("plain PySpark, at-least-once", "200"),
    "tuned": ("PySpark with two shuffle partitions, at-least-once", "2"),
}
"""The topic of each side, what it is, and its shuffle partitions."""
CUSTOMERS: Final = 20
EVERY_S: Final = 0.05
START_TIMEOUT_S: Final = 180.0
SETTLE_S: Final = 5.0
"""How long a driver works before it is killed."""


def run(report: Report, say: Callable[[str], None], *, rounds: int = 3) -> None:
    if not connector_jars():
        report.notes.append("spark restart: Spark's Kafka connector is missing: run `penstock spark jars`")
        return
    say(f"   {penstock_command('spark', 'archive', cache=os.environ.get('PENSTOCK_CACHE', ''))}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-restart-")))
        server = stack.enter_context(Penstock(folder / "broker"))
        with penstock.connect(f"kafka://{server.bootstrap}") as connection:
            for topic in ("orders", *SIDES):
                connection.create_topic(topic, 2)
        orders = stack.enter_context(Orders(server.bootstrap))
        restarts: dict[str, list[float]] = {side: [] for side in SIDES}
        starts: dict[str, list[float]] = {side: [] for side in SIDES}
        for number in range(rounds):
            for side in restarts:
                started_s, restarted_s = killed_once(side, folder, server.bootstrap, orders)
                say(f"   round {number}: {side} {started_s:.1f} s to start, {restarted_s:.1f} s after the kill")
                starts[side].append(started_s)
                restarts[side].append(restarted_s)
    killed, begun = "kill -9 of the driver to the next result", "start to the first result"
    for what, seconds in ((killed, restarts), (begun, starts)):
        median = {side: statistics.median(taken) for side, taken in seconds.items()}
        for side, (name, _) in SIDES.items():
            if seconds is starts:
                report.figures.append(Figure(f"spark: {what}, {name}", median[side], "s"))
            elif side != OUR_SIDE:
                ours = median[OUR_SIDE]
                row = Row(
                    f"spark: {what}", ours, SIDES[OUR_SIDE][0], median[side], name, "s", 0.6, lower_is_better=True
                )
                report.rows.append(row)
    report.notes.append(
        f"spark restart: local[2], sums by customer of JSON orders, a broker with fsync before the answer, {rounds} "
        "rounds; each round continues the checkpoint of the one before"
    )


def killed_once(side: str, folder: Path, bootstrap: str, orders: Orders) -> tuple[float, float]:
    """Start one side, kill it, and end it. The seconds to the first result, and from the kill to the next one."""
    jars = ",".join(map(str, connector_jars()))
    text = (OURS if side == OUR_SIDE else PLAIN).format(
        query=QUERY, bootstrap=bootstrap, folder=folder, topic=side, jars=jars, partitions=SIDES[side][1]
    )
    program = folder / f"{side}.py"
    program.write_text(text)
    supervised = [sys.executable, "-m", "penstock.cli", "run", str(program), "--supervise", "--logs", str(folder)]
    command = supervised if side == OUR_SIDE else [sys.executable, str(program)]
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(contextlib.closing(Results(bootstrap, side)))
        process = stack.enter_context(started(command, folder))
        started_s = orders.seconds_until(results)
        time.sleep(SETTLE_S)
        driver = descendants(process.pid) if side == OUR_SIDE else [process.pid, *descendants(process.pid)]
        for pid in driver:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if side != OUR_SIDE:
            process.wait(30)
            stack.enter_context(started(command, folder))
        return started_s, orders.seconds_until(results)


@contextlib.contextmanager
def started(command: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended, with all that it has started, at the end of the block."""
    with open(folder / "output.txt", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(process: int) -> list[int]:
    """The processes below one, those that are closest to it first."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    found = [process]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


class Orders:
    """Sends numbered orders until it is closed."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.sent = 0

    def __enter__(self) -> Orders:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(10)

    def _send(self) -> None:
        while not self._ended.wait(EVERY_S):
            customer = f"customer-{self.sent % CUSTOMERS}"
            value = {"customer": customer, "cents": 5, "number": self.sent + 1}
            self._producer.produce("orders", json.dumps(value), customer)
            self._producer.poll(0)
            self.sent += 1

    def seconds_until(self, results: Results) -> float:
        """The seconds until a result has an order that is sent from now on."""
        first, began_s = self.sent + 1, time.monotonic()
        while results.newest() < first:
            if time.monotonic() - began_s > START_TIMEOUT_S:
                raise TimeoutError(f"no result of an order after {first} within {START_TIMEOUT_S:.0f} s")
        return time.monotonic() - began_s


class Results:
    """The committed results in a topic, from now on."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "results", "enable.auto.commit": False})
        places = [TopicPartition(topic, number) for number in (0, 1)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=10)[1]
        self._consumer.assign(places)
        self._newest = 0

    def newest(self) -> int:
        """The highest number of an order in a result, after waiting a little for one."""
        message = self._consumer.poll(0.05)
        if message is not None and message.error() is None:
            self._newest = max(self._newest, json.loads(message.value() or b"{}")["number"])
        return self._newest

    def close(self) -> None:
        self._consumer.close()
