"""The Spark pipeline: views of each page per 10 seconds, exactly once, with late events set aside."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.demo.events import (
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
from penstock.demo.processes import Owner
from penstock.spark import Pipeline, RealTime, session
from penstock.spark.sessions.jars import connector_jars
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
    # Records wait at each boundary between batches, for half a second on a busy machine, and the driver that follows a
    # killed one repeats its batch: so batches are neither short nor long.
    pipeline.write(payments, LARGE_PAYMENTS, key="card", guarantee="at-least-once", trigger=RealTime("30 seconds"))
    return pipeline


def add_up(url: str, cores: str, *, owner: Owner) -> None:
    """Run until asked to finish; then process the rest, to the last window, and end."""
    real_time = bool(connector_jars())
    # In real-time mode each partition has a task that runs all the time. Slots are threads here, and most of them wait.
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
                pipeline.wait(0.0)  # raises the error that has ended a query for good
        for pipeline in running:
            pipeline.close()
        _tell(running, owner)
        written = {query: each.rows_written for pipeline in running for query, each in pipeline.progress().items()}
        close_windows(url)
        with pipeline_of_use(url, spark) as rest:
            rest.start(once=True)
            while not rest.wait(_TELL_EVERY_S):
                _tell([rest], owner, written)
            _tell([rest], owner, written)


def close_windows(url: str) -> None:
    """Send an event that moves the watermark past the last windows, so that they are final.

    The ending run must read it: Spark writes final windows in the next batch, and a query that was stopped in between
    would wait for new events."""
    end_s = window_of(datetime.datetime.now(datetime.UTC)) + WINDOW_S + GRACE_S
    with connect(url) as stream:
        stream.send(PAGE_EVENTS, PageEvent(CLOSING, "", "clock", datetime.datetime.fromtimestamp(end_s, datetime.UTC)))


@contextmanager
def _stopped(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        yield spark
    finally:
        spark.stop()


def _tell(pipelines: Sequence[Pipeline], owner: Owner, written: Mapping[str, int] | None = None) -> None:
    """Report the progress of queries, including what earlier runs in this process have written. What they have read is
    their checkpoint's offset, as topics begin at 0: it includes what earlier drivers had read."""
    for pipeline in pipelines:
        for query, progress in pipeline.progress().items():
            owner.tell(
                "query",
                query=query,
                batch=progress.batch_id,
                read=sum(sum((source["end"] or {}).values()) for source in progress.sources),
                written=(written or {}).get(query, 0) + progress.rows_written,
                lag=progress.lag,
                state=progress.state,
                error=progress.error,
            )
