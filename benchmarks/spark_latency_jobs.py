"""The queries whose delay `spark_latency` measures, each the driver of a process of its own.

    python -m benchmarks.spark_latency_jobs JOB URL FOLDER

Runs until its standard input ends. Input and output are the topics `payments` and `results`; each result carries the
time `t` of the payment that brought it about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.spark import Pipeline, session
from penstock.spark.reading import read_stream
from penstock.spark.realtime.mode import start_real_time
from penstock.spark.sessions.jars import connector_jars
from penstock.streams.options import ConnectOptions

PAYMENT: Final = "id bigint, card string, merchant string, cents bigint, km bigint, t bigint"
MERCHANTS: Final = 50
CORES: Final = 2
SLOTS: Final = 4
"""Threads for tasks in real-time mode, each of which waits for records most of the time."""


def payments(spark: SparkSession, url: str) -> DataFrame:
    rows = read_stream(spark, url, "payments", engine="native", start="latest")
    parsed = F.from_json(F.col("value").cast("string"), PAYMENT)
    return rows.select(parsed.alias("payment")).select("payment.*")


def judged(spark: SparkSession, rows: DataFrame) -> DataFrame:
    """The fraud case: rules over amount and distance, a join with merchants, and how often a card is used a minute."""
    known = spark.range(MERCHANTS).select(
        F.concat(F.lit("shop-"), "id").alias("merchant"), (F.col("id") % 4 * 10).alias("risk")
    )
    scored = (
        rows.join(F.broadcast(known), "merchant", "left")
        .withColumn("amount", F.when(F.col("cents") > 500_000, 60).otherwise(0))
        .withColumn("distance", F.when(F.col("km") > 1_000, 50).otherwise(0))
        .withColumn("at", F.timestamp_micros((F.col("t") / 1000).cast("bigint")))
        .withWatermark("at", "1 minute")
    )
    by_card = scored.groupBy(F.window("at", "1 minute"), "card").agg(
        F.count("*").alias("times"),
        F.max(F.col("amount") + F.col("distance") + F.coalesce("risk", F.lit(20))).alias("worst"),
        F.max("t").alias("t"),
    )
    points = F.col("worst") + F.least(F.lit(60), F.greatest(F.lit(0), F.col("times") - 3) * 10)
    return by_card.select("card", "times", points.alias("points"), "t")


def stateless(spark: SparkSession, rows: DataFrame) -> DataFrame:
    return rows.where("cents >= 0").withColumn("amount", F.when(F.col("cents") > 500_000, 60).otherwise(0))


def real_time(
    url: str, folder: Path, make: Callable[[SparkSession, DataFrame], DataFrame], client: ConnectOptions | None = None
) -> StreamingQuery:
    spark = session("latency", master=f"local[{SLOTS}]", conf={"spark.driver.memory": "1g"})
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    frame = make(spark, payments(spark, url))
    checkpoint = str(folder / "checkpoint")
    return start_real_time(frame, url, "results", key="card", checkpoint=checkpoint, name="latency", client=client)


def batches(spark: SparkSession, url: str, folder: Path) -> StreamingQuery:
    """Plain Spark, from its Kafka connector to its Kafka sink, batch after batch."""
    with penstock.connect(url) as connection:
        bootstrap = connection.bootstrap
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "payments")
    parsed = F.from_json(F.col("value").cast("string"), PAYMENT)
    found = stateless(spark, rows.load().select(parsed.alias("payment")).select("payment.*"))
    writer = found.select(F.to_json(F.struct("*")).alias("value")).writeStream.format("kafka")
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", "results")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def stock(url: str, folder: Path) -> StreamingQuery:
    jars = ",".join(str(jar) for jar in connector_jars())
    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.driver.memory", "1g")
    return batches(builder.config("spark.jars", jars).getOrCreate(), url, folder)


def ours(url: str, folder: Path) -> StreamingQuery:
    spark = session("latency", master=f"local[{CORES}]", conf={"spark.driver.memory": "1g"}, connector=True)
    return batches(spark, url, folder)


def pipeline(url: str, folder: Path) -> Pipeline:
    spark = session("latency", master=f"local[{CORES}]", conf={"spark.driver.memory": "1g"})
    made = Pipeline("latency", url, checkpoints=str(folder / "checkpoint"), spark=spark)
    parsed = F.from_json(F.col("value").cast("string"), PAYMENT)
    rows = made.read("payments", start="latest").select(parsed.alias("payment")).select("payment.*")
    made.write(stateless(spark, rows), "results", key="card")
    made.start()
    return made


JOBS: Final[dict[str, Callable[[str, Path], object]]] = {
    "real-time-stateless": lambda url, folder: real_time(url, folder, stateless),
    "real-time-stateless-acks-1": lambda url, folder: real_time(url, folder, stateless, {"acks": 1}),
    "real-time-fraud": lambda url, folder: real_time(url, folder, judged),
    "real-time-fraud-acks-1": lambda url, folder: real_time(url, folder, judged, {"acks": 1}),
    "batches-ours": ours,
    "batches-stock": stock,
    "batches-pipeline": pipeline,
}


def main(job: str, url: str, folder: str) -> None:
    running = JOBS[job](url, Path(folder))
    print("started", flush=True)
    sys.stdin.read()
    if isinstance(running, Pipeline):
        running.close()
    elif isinstance(running, StreamingQuery):
        error = running.exception()
        running.stop()
        if error is not None:
            raise error


if __name__ == "__main__":
    main(*sys.argv[1:])
