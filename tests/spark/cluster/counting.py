"""The program that the tests run on the cluster: copies numbers from topic to topic, exactly once, and counts them.

    python counting.py URL CHECKPOINTS MASTER GATE

When the task that copies comes to a record `gate NAME`, it leaves the file `NAME.held` in the folder GATE, and goes on
when there is a file `NAME.go`. So a test knows that a batch is half done, and where, before it kills something.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import functions as F

from penstock.spark.pipeline import Pipeline
from penstock.spark.sessions.opening import session

GATE_MARK: Final = b"gate "
PER_BATCH: Final = 100
HELD_S: Final = 240.0


def at_gate(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Batches as they are, held up at the mark until somebody says go."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("value").to_pylist():
                if value.startswith(GATE_MARK):
                    wait_at(Path(folder), value.removeprefix(GATE_MARK).decode(), HELD_S)
            yield batch

    return pass_on


def wait_at(gate: Path, name: str, timeout_s: float) -> None:
    beside = gate / f".held.{os.getpid()}"
    beside.write_text(os.getcwd())
    beside.replace(gate / f"{name}.held")
    until = time.monotonic() + timeout_s
    while not (gate / f"{name}.go").exists():
        if time.monotonic() > until:
            raise TimeoutError(f"nobody said go within {timeout_s:g} s")
        time.sleep(0.01)


def main(url: str, checkpoints: str, master: str, gate: str) -> None:
    spark = session(
        "counting",
        master=master,
        conf={
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    pipeline = Pipeline("counting", url, checkpoints=checkpoints, spark=spark)
    numbers = pipeline.read("numbers", max_records_per_batch=PER_BATCH)
    copies = numbers.select("key", "value").mapInArrow(at_gate(gate), "key binary, value binary")
    pipeline.write(copies, "copies")
    counts = numbers.groupBy(F.col("key").cast("string").alias("name")).agg(F.count("*").alias("times"))
    pipeline.write(counts, "counts", key="name")
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
