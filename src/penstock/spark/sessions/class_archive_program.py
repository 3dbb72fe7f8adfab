"""The program that loads the classes for an archive: `python -m penstock.spark.sessions.class_archive_program FILE`.

It does a little of what pipelines do (typed records, windows, joins, state, files, and Spark's Kafka connector if it is
available), and waits until the JVM has written the file and exited.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, expr, window

from penstock.serde import Topic
from penstock.spark import Folder, Pipeline, session
from penstock.spark.run.settings import Engine
from penstock.spark.sessions.opening import has_connector, warm_workers
from penstock.streams import connect

RECORDS: Final = 60
MEMORY: Final = "1g"
END_WITHIN_S: Final = 300.0


@dataclasses.dataclass
class Event:
    name: str
    at: datetime
    amount: float


def main(file: str) -> None:
    options = f'"-XX:ArchiveClassesAtExit={file}"'
    spark = session(master="local[2]", conf={"spark.driver.memory": MEMORY, "spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder, connect(f"log:{folder}/log") as connection:
        events = Topic("events", Event, key=lambda event: event.name)
        begin = datetime(2024, 1, 1, tzinfo=UTC)
        for number in range(RECORDS):
            connection.send(events, Event(f"name-{number % 7}", begin + timedelta(seconds=number), float(number)))
        connection.flush()
        engines: list[Engine] = ["python", "native"] if has_connector(spark) else ["python"]
        for engine in engines:
            run_pipeline(Path(folder), events, engine)
        use_batches(spark, Path(folder))
    jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()  # the JVM then exits
    jvm.wait(END_WITHIN_S)


def run_pipeline(folder: Path, events: Topic[Event], engine: Engine) -> None:
    """Windows to a topic, exactly once, and a stream-stream join to files."""
    pipeline = Pipeline(f"archive-{engine}", f"log:{folder}/log", engine=engine, checkpoints=str(folder / engine))
    rows = pipeline.read(events).withWatermark("at", "5 seconds")
    sums = rows.groupBy(window("at", "10 seconds"), "name").sum("amount")
    pipeline.write(sums, f"sums-{engine}", key="name", guarantee="exactly-once")
    left = rows.select(col("name"), col("at"), col("amount"))
    right = rows.select(col("name").alias("other"), col("at").alias("then"), (col("amount") * 2).alias("twice"))
    joined = left.join(right, expr("name = other and then between at and at + interval 2 seconds"))
    pipeline.write(joined, Folder(str(folder / f"joined-{engine}")))
    pipeline.run(once=True)


def use_batches(spark: SparkSession, folder: Path) -> None:
    """Files, JSON, SQL and Python workers in batch queries."""
    rows = spark.range(100).selectExpr("id % 5 as k", "to_json(struct(id, 'a' as b)) as text")
    rows.groupBy("k").count().orderBy("k").collect()
    rows.write.parquet(str(folder / "parquet"))
    spark.read.parquet(str(folder / "parquet")).selectExpr("from_json(text, 'id long, b string').id").toPandas()
    warm_workers(spark).join()


if __name__ == "__main__":
    main(sys.argv[1])
