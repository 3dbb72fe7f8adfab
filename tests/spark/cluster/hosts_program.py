"""The program that runs on hosts: copies records to the targets that it is told, exactly once, and counts them.

    python hosts_program.py '{"url": ..., "master": ..., ...}'

The value of a record is its number, the second of its event, and padding, by which a batch is too large to be staged
without files. A record with a gate in its value is held by the task that comes to it, until the test says go over HTTP:
hosts share no folder. Only the first task is held. A repeated one passes, so the first becomes the zombie.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

GATE_MARK: Final = b"gate "
PER_BATCH: Final = 60
PADDING: Final = b"." * 20_000
"""A batch has two tasks, of which each stages more than `INLINE_BYTES`."""
HELD_S: Final = 900.0
COLUMNS: Final = "key binary, value binary"


def at_gate(gate: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches as they are. A task waits at a mark until the test says go."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("value").to_pylist():
                if GATE_MARK in value:
                    wait_at(f"{gate}/{value.partition(GATE_MARK)[2].split()[0].decode()}")
            yield batch

    return pass_on


def wait_at(gate: str, timeout_s: float = HELD_S) -> None:
    question = f"{gate}?task={uuid.uuid4().hex}&host={os.uname().nodename}"
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(question, timeout=2) as answer:
                if answer.read() == b"go":
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass  # the cable is out
        time.sleep(0.05)
    raise TimeoutError(f"nobody said go within {timeout_s:g} s")


def main(told: dict[str, Any]) -> None:
    from penstock.spark import Folder, Pipeline, SqlTable, session
    from penstock.spark.sink.topic import TopicTarget

    spark = session("hosts", master=told["master"], conf=told["conf"])
    pipeline = Pipeline("hosts", told["url"], checkpoints=told["checkpoints"], spark=spark)
    numbers = pipeline.read("numbers", max_records_per_batch=PER_BATCH)
    passed = numbers.select("key", "value").mapInArrow(at_gate(told["gate"]), COLUMNS)
    if "topic" in told["targets"]:
        limit = 0 if told["by_tasks"] else None
        pipeline.write(passed, TopicTarget(told["url"], "copies", parallel_above_bytes=limit), name="topic")
    text = passed.select(F.col("key").cast("string").alias("name"), F.col("value").cast("string").alias("text"))
    if "sql" in told["targets"]:
        pipeline.write(text, SqlTable(told["database"], "copies"), name="sql")
    if "files" in told["targets"]:
        pipeline.write(text, Folder(os.environ.get("PENSTOCK_TEST_FOLDER", told["folder"])), name="files")
    if "windows" in told["targets"]:
        write_windows(pipeline, numbers)
    if "state" in told["targets"]:
        write_totals(pipeline, numbers)
    pipeline.run()


def write_windows(pipeline: Any, numbers: DataFrame) -> None:
    """Rows by window; those of closed windows to the topic `late`."""
    words = F.split(F.col("value").cast("string"), " ")
    at = F.timestamp_seconds(words[1].cast("long")).alias("at")
    events = numbers.select(words[0].cast("long").alias("number"), at)
    on_time = pipeline.on_time(events, "at", grace="10 seconds", window="10 seconds", late="late")
    counts = on_time.groupBy(F.window("at", "10 seconds").alias("w")).agg(F.count("*").alias("rows"))
    pipeline.write(counts.select(F.unix_timestamp("w.start").alias("start"), "rows"), "windows", name="windows")


def add_up(name: str, rows: Iterator[Any], ctx: Any) -> Iterator[dict[str, Any]]:
    """The rows of a key so far, and the sum of their numbers: a batch that counted twice would show in both."""
    numbers = [row.number for row in rows]
    count, total = ctx.value("rows"), ctx.value("sum")
    count.put(count.get(0) + len(numbers))
    total.put(total.get(0) + sum(numbers))
    yield {"name": name, "rows": count.get(0), "sum": total.get(0)}


def write_totals(pipeline: Any, numbers: DataFrame) -> None:
    """Running totals by key, kept in state."""
    from penstock.spark import stateful

    number = F.split(F.col("value").cast("string"), " ")[0].cast("long").alias("number")
    named = numbers.select(F.col("key").cast("string").alias("name"), number)
    values = {"rows": int, "sum": int}
    totals = stateful(named, "name", add_up, "name string, rows long, sum long", values=values, mode="update")
    pipeline.write(totals, "totals", key="name", name="state")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
