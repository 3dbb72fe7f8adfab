"""A program with a streaming query into topics, tables and lake tables, which kills itself and its JVM if told.

    python -m tests.spark.sink.dying_query '{"input": ..., "checkpoint": ..., "deaths": {"1": "transaction"}}'

It delivers everything that is in the folder `input`, one file a batch, and ends with exit code 0. A task of every batch
fails at its first attempt, when it has had all of its rows. The second topic is written by tasks, of which the first
also fails when it has flushed its transaction. Three of the tables have a key; for them an empty line is a row without
one, for the dead letters in `letters`.
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

from penstock.lakes import LakeTable
from penstock.lakes.delta import DeltaFormat
from penstock.lakes.iceberg import IcebergFormat
from penstock.spark import SqlTable, TopicTarget
from penstock.spark.sessions.opening import session
from penstock.spark.sink import staging as staged
from penstock.spark.sink.folders.lake import LakeTarget
from penstock.spark.sink.publishing import Publisher, TaskTransaction
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.target import Delivery, QueryIdentity, Target
from penstock.spark.sink.task_transactions import Assignment, ParallelPublisher, Refusal, TaskWriter
from penstock.spark.values.undecodable import Letters
from penstock.streams.kafka.producing.open_transactions import TransactionCoordinators
from penstock.streams.kafka.producing.transactions import TransactionalProducer

SMALL_BYTES = 500
"""More than this is staged in files."""
FILES_A_BATCH = 3
"""The number of tasks that write to the second topic."""


class FailingOnce(TaskWriter):
    """The first attempt at the first task writes everything, leaves its transaction open, and fails."""

    def __call__(self, assignment: Assignment) -> TaskTransaction | Refusal:
        outcome = super().__call__(assignment)
        context = TaskContext.get()
        if context is not None and assignment.number == 0 and context.attemptNumber() == 0:
            raise RuntimeError("this task fails on purpose")
        return outcome


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
        "parallel": TopicTarget(told["url"], told["parallel"], partitions=2, parallel_above_bytes=0),
        "sqlite": SqlTable(told["sqlite"], "numbers"),
        "postgres": SqlTable(told["postgres"], "numbers"),
        "keyed sqlite": SqlTable(told["sqlite"], "keyed", key="number"),
        "keyed postgres": SqlTable(told["postgres"], "keyed", key="number"),
        "delta": LakeTarget(LakeTable(told["delta"])),
        "keyed iceberg": LakeTarget(LakeTable(told["iceberg"], key="number")),
    }
    refused = RefusedRows(Letters(told["url"], told["letters"], {}), "dying", "")
    stage = staged.stage
    lake = "penstock.spark.sink.folders.lake"
    for module in ("penstock.spark.sink.topic_delivery", "penstock.spark.sink.sql.delivery", lake):
        setattr(sys.modules[module], "stage", functools.partial(stage, inline_bytes=SMALL_BYTES))  # noqa: B010
    setattr(sys.modules["penstock.spark.sink.topic_delivery"], "TaskWriter", FailingOnce)  # noqa: B010
    opened: dict[str, Delivery] = {}
    batch, now = [-1], [""]

    def at(step: str) -> None:
        if deaths.get(str(batch[0])) == step:
            die()

    def step_after(owner: type, method: str, target: str, what: str) -> None:
        real = getattr(owner, method)

        def stepping(self: Any, *given: Any) -> Any:
            outcome = real(self, *given)
            if now[0] == target:
                at(f"after {what}")
            return outcome

        setattr(owner, method, stepping)

    step_after(DeltaFormat, "write", "delta", "a commit of Delta")
    step_after(IcebergFormat, "write", "keyed iceberg", "a commit of Iceberg")
    for method in ("append_rows", "commit"):
        step_after(TransactionalProducer, method, "topic", method)
    step_after(ParallelPublisher, "_written", "parallel", "tasks have written")
    step_after(Publisher, "publish", "parallel", "the mark of tasks")
    step_after(TransactionCoordinators, "commit", "parallel", "one EndTxn")
    step_after(ParallelPublisher, "_aborted", "parallel", "every EndTxn")
    step_after(Publisher, "replace_open", "parallel", "the end is confirmed")

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
            if name == "parallel":
                rows = frame.where("value <> ''").repartition(FILES_A_BATCH)
            now[0] = name
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
