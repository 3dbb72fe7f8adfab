"""The pipeline on Spark: how often each page was seen in each 10 seconds, exactly once, with late events set aside."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.cli.demo.child import Owner
from penstock.cli.demo.events import (
    CLOSING,
    GRACE_S,
    LARGE_CENTS,
    LARGE_PAYMENTS,
    PAGE_EVENTS,
    PAGE_EVENTS_LATE,
    PAGE_USE,
    TRANSACTIONS,
    WINDOW_S,
    PageEvent,
    window_of,
)
from penstock.spark import Pipeline, RealTime, session
from penstock.spark.jars import connector_jars
from penstock.spark.windows import tumbling
from penstock.streams import connect

PIPELINE: Final = "page-use"
REAL_TIME_PIPELINE: Final = "large-payments"
_TELL_EVERY_S: Final = 0.5
_TRANSACTION: Final = "number bigint, card string, cents bigint, country string"


def pipeline_of_use(url: str, spark: SparkSession) -> Pipeline:
    pipeline = Pipeline(PIPELINE, url, spark=spark)
    window = f"{WINDOW_S} seconds"
    rows = pipeline.read(PAGE_EVENTS)
    on_time = pipeline.on_time(rows, "at", window=window, grace=f"{GRACE_S} seconds", late=PAGE_EVENTS_LATE)
    use = on_time.groupBy(tumbling("at", window), "page").agg(F.count("*").alias("seen"))
    pipeline.write(use, PAGE_USE, key="page", guarantee="exactly-once", trigger="1 second")
    return pipeline


def pipeline_of_large_payments(url: str, spark: SparkSession) -> Pipeline:
    """Passes large payments on one by one, in milliseconds: Spark's real-time mode, which needs its Kafka connector."""
    pipeline = Pipeline(REAL_TIME_PIPELINE, url, engine="native", spark=spark)
    parsed = F.from_json(F.col("value").cast("string"), _TRANSACTION)
    rows = pipeline.read(TRANSACTIONS.name, start="earliest")
    large = rows.select(parsed.alias("it"), F.col("timestamp").alias("appended")).where(f"it.cents >= {LARGE_CENTS}")
    payments = large.select("it.number", "it.card", "it.cents", "appended")
    pipeline.write(payments, LARGE_PAYMENTS, key="card", guarantee="at-least-once", trigger=RealTime("5 seconds"))
    return pipeline


def add_up(url: str, cores: str, *, owner: Owner) -> None:
    """Run until asked to end; then process what is left, to the last window, and end."""
    real_time = bool(connector_jars())
    # In real-time mode a task for each partition runs all the time. Slots are threads here, and most of them wait.
    slots = int(cores) + (TRANSACTIONS.partitions or 1 if real_time else 0)
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"}
    with _stopped(session("penstock demo", master=f"local[{slots}]", conf=conf)) as spark:
        owner.tell("session", real_time=real_time)
        running = [pipeline_of_use(url, spark)]
        if real_time:
            running.append(pipeline_of_large_payments(url, spark))
        for pipeline in running:
            pipeline.start()
        while not owner.wants_end.wait(_TELL_EVERY_S):
            _tell(running, owner)
            for pipeline in running:
                pipeline.wait(0.0)  # raises what has ended a query for good
        for pipeline in running:
            pipeline.close()
        close_windows(url)
        with pipeline_of_use(url, spark) as rest:
            rest.run(once=True)


def close_windows(url: str) -> None:
    """Windows are final when time has moved past them and their grace. Nothing comes to move it any more but this.

    It must be read by the run that ends: Spark writes what has become final in the batch after, and a query that was
    stopped in between would wait for new events with it."""
    end_s = window_of(datetime.datetime.now(datetime.UTC)) + WINDOW_S + GRACE_S
    with connect(url) as stream:
        stream.send(PAGE_EVENTS, PageEvent(CLOSING, "", "clock", datetime.datetime.fromtimestamp(end_s, datetime.UTC)))


@contextmanager
def _stopped(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        yield spark
    finally:
        spark.stop()


def _tell(pipelines: Sequence[Pipeline], owner: Owner) -> None:
    for pipeline in pipelines:
        for query, progress in pipeline.progress().items():
            owner.tell(
                "query",
                query=query,
                read=progress.rows_read,
                written=progress.rows_written,
                lag=progress.lag,
                state=progress.state,
                error=progress.error,
            )
