"""A program with a streaming query into a topic and four tables, which kills itself, and its JVM, where it is told to.

    python -m tests.spark.sink.dying_query '{"input": ..., "checkpoint": ..., "deaths": {"1": "transaction"}}'

It delivers everything that is in the folder `input`, one file a batch, and ends with exit code 0. A task of every batch
fails at its first attempt, when it has had all of its rows. Two of the tables have a key; for them an empty line is a
row without one, for the dead letters in `letters`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.spark import SqlTable, TopicTarget
from penstock.spark.sessions.opening import session
from penstock.spark.sink import staging as staged
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.target import Delivery, QueryIdentity, Target
from penstock.spark.values.undecodable import Letters
from penstock.streams.kafka.producing.transactions import TransactionalProducer

SMALL_BYTES = 500
"""More than this is staged in files."""


def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("this task fails on purpose")


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def main(told: dict[str, Any]) -> None:
    deaths: dict[str, str] = told["deaths"]
    spark = session(
        "dying", master="local[2,3]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    )
    spark.sparkContext.setLogLevel("OFF")
    targets: dict[str, Target] = {
        "topic": TopicTarget(told["url"], told["topic"], partitions=2),
        "sqlite": SqlTable(told["sqlite"], "numbers"),
        "postgres": SqlTable(told["postgres"], "numbers"),
        "keyed sqlite": SqlTable(told["sqlite"], "keyed", key="number"),
        "keyed postgres": SqlTable(told["postgres"], "keyed", key="number"),
    }
    refused = RefusedRows(Letters(told["url"], told["letters"], {}), "dying", "")
    stage = staged.stage
    for module in ("penstock.spark.sink.topic_delivery", "penstock.spark.sink.sql.delivery"):
        setattr(sys.modules[module], "stage", functools.partial(stage, inline_bytes=SMALL_BYTES))  # noqa: B010
    opened: dict[str, Delivery] = {}
    batch = [-1]

    def at(step: str) -> None:
        if deaths.get(str(batch[0])) == step:
            die()

    for method in ("append_rows", "commit"):
        real = getattr(TransactionalProducer, method)

        def stepping(self: TransactionalProducer, *given: Any, real: Any = real, method: str = method) -> None:
            real(self, *given)
            at(f"after {method}")

        setattr(TransactionalProducer, method, stepping)

    real_put = RefusedRows.put

    def put(self: RefusedRows, *given: Any) -> int:
        count = real_put(self, *given)
        at("after letters")
        return count

    setattr(RefusedRows, "put", put)  # noqa: B010

    def deliver(frame: DataFrame, batch_id: int) -> None:
        batch[0] = batch_id
        query = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        failing = frame.where("value <> ''").mapInArrow(fail_once, frame.schema)
        keyed = frame.select(F.col("value").try_cast("long").alias("number"))
        for name, target in targets.items():
            if name not in opened:
                staging = f"{told['checkpoint']}-staging/{name}"
                identity = QueryIdentity("dying", "numbers", f"{query}/{name}", staging, refused=refused)
                opened[name] = target.open(identity)
            rows = failing if name == "topic" else keyed if name.startswith("keyed") else keyed.dropna()
            opened[name].deliver(rows, batch_id)
        at("before Spark's commit")

    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(told["input"])
    query = (
        lines.writeStream.foreachBatch(deliver)
        .option("checkpointLocation", told["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for delivery in opened.values():
        delivery.close()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
