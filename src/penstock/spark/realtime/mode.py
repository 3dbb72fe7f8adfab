"""Real-time mode: records pass a query one by one, in milliseconds, instead of in batches.

Spark's own mode (`trigger(realTime=...)`) does the work, from its Kafka connector to its Kafka sink, or to a table of
PostgreSQL (penstock.spark.realtime.tables). This module checks in advance whether a query can run that way, chooses
settings for low latency, and makes sure that every task has a slot. A query into a topic that cannot run in real-time
mode runs in batches, with a warning that lists the reasons.

Results go to a topic at least once: a restarted query begins at the end of the last batch, up to `batch` ago, and
writes the later results again. State, such as counts, is still exact. A table receives each row once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import CheckpointMismatchError, ConfigError, PipelineError
from penstock.model import Guarantee
from penstock.serde import Topic
from penstock.spark.durations import interval, microseconds
from penstock.spark.jvm import jvm_of
from penstock.spark.realtime.planning import SHUFFLE_PARTITIONS, RealTimePlan, planned
from penstock.spark.run.plans import stateful_operators
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.run.triggers import RealTime
from penstock.spark.sessions.defaults import local_cores
from penstock.spark.sessions.opening import has_connector
from penstock.spark.sink.sql.table import SqlTable
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.sink.topic_delivery import topics_for
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.source.native import connector_options
from penstock.spark.source.origin import TopicSelection
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.url import KafkaUrl, LogUrl, parse_url, without_password
from penstock.streams.url_settings import client_with

_COMING_UP_S: Final = 30.0
"""How long the executors of a cluster may take to start."""
_POLL_S: Final = 0.1

_lock: Final = threading.Lock()
_held: Final[dict[StreamingQuery, int]] = {}
"""The slots of running queries in real-time mode."""


def shuffle_partitions_for(spark: SparkSession, plan: RealTimePlan, what: str) -> int | None:
    """The number of shuffle partitions for which all tasks of the query have slots; None: that of the session.

    It waits for starting executors, and reduces the session's number if necessary. Raises PipelineError if there is not
    even one slot for each shuffle.
    """
    least = plan.source_tasks + len(plan.shuffles)
    until = time.monotonic() + _COMING_UP_S
    while (free := _free_slots(spark)) < plan.tasks:
        if _is_local(spark) or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    if plan.tasks <= free:
        return None
    if least <= free:
        return (free - plan.source_tasks) // len(plan.shuffles)
    raise PipelineError(
        f"{what}: real-time mode runs all tasks at the same time. It needs {_needed(plan, least)}, and of the "
        f"{_slots(spark)} that Spark has, {free} {'is' if free == 1 else 'are'} free. {_advice(spark, least, free)}"
    )


def hold(query: StreamingQuery, plan: RealTimePlan, shuffle_partitions: int | None) -> None:
    """Count the slots of a query that was started, with this many shuffle partitions, until it ends."""
    tasks = plan.tasks if shuffle_partitions is None else plan.source_tasks + shuffle_partitions * len(plan.shuffles)
    with _lock:
        _held[query] = tasks


def _needed(plan: RealTimePlan, least: int) -> str:
    sources = f"one for each of the {plan.source_tasks} partitions that it reads"
    if not plan.shuffles:
        return f"{least} slots ({sources})"
    return f"{least} slots or more ({sources}, and one or more behind each of its {len(plan.shuffles)} shuffles)"


def _advice(spark: SparkSession, least: int, free: int) -> str:
    if _is_local(spark):
        slots = _slots(spark) + least - free
        return f"Run it on local[{slots}]: there, slots are threads, and may outnumber the cores"
    return "Add cores to the cluster, stop other queries, or read topics with fewer partitions"


def _is_local(spark: SparkSession) -> bool:
    return local_cores(spark.sparkContext.master or "") is not None


def _slots(spark: SparkSession) -> int:
    """The number of tasks that the current executors run at the same time."""
    context = spark.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def _free_slots(spark: SparkSession) -> int:
    """The slots that no query in real-time mode holds. Tasks of other queries end soon."""
    with _lock:
        for query in [query for query in _held if not query.isActive]:
            del _held[query]
        return max(0, _slots(spark) - sum(_held.values()))


Start = Callable[[str, str], StreamingQuery]
"""Starts a query with this name and checkpoint in real-time mode."""
StartTable = Callable[[str, str, bool], StreamingQuery]
"""The same for a query into a table; True: process what is there, and end."""

_SHORTEST: Final = "spark.sql.streaming.realTimeMode.minBatchDuration"
_CONTINUES_BATCHES: Final = "spark.sql.streaming.realTimeMode.dangerouslyAllowCheckpointV1.enabled"
"""Lets a query go on that has run in batches. That is a danger to state only, which may then be lost."""
_OF_READERS: Final = ("subscribe", "includeHeaders", "kafka.isolation.level")
_OF_BATCHES: Final = "v1"
"""The first line of commits in a checkpoint whose state was written by batches."""
_starting: Final = threading.Lock()
_log = logging.getLogger("penstock.spark")


def plan_table(frame: DataFrame, target: SqlTable, trigger: RealTime, what: str) -> StartTable:
    """A function that starts the query into this table.

    Raises ConfigError if it cannot run in real-time mode: rows that were written one by one cannot be told from those
    of a batch, so that no query changes between the two.
    """
    from penstock.spark.realtime import tables

    batch = _batch(frame.sparkSession, trigger, what)
    reasons = tables.check(frame, target)
    if reasons:
        raise ConfigError(f"{what} cannot run in real-time mode: {'; '.join(reasons)}")

    def start(name: str, checkpoint: str, once: bool) -> StreamingQuery:
        spark = frame.sparkSession
        _check_checkpoint(frame, checkpoint, name)
        writer = tables.writer_of(frame, target, name, checkpoint)
        if once:
            return writer.trigger(availableNow=True).start()
        needed = planned(frame)
        fitting = shuffle_partitions_for(spark, needed, f"query {name!r}")
        return _begin(frame, writer, batch, needed, fitting)

    return start


def check(frame: DataFrame, target: TopicTarget) -> list[str]:
    """The reasons why this frame cannot be written to this topic in real-time mode; empty if it can.

    They come from Spark's own planner and its list of allowed operators. Nothing is read or written.
    """
    reasons = _refused_target(frame, target)
    return reasons or list(planned(_rows_of(frame, target)).reasons)


def plan(frame: DataFrame, target: TopicTarget, trigger: RealTime, what: str) -> Start | None:
    """A function that starts the query in real-time mode; None, with a warning, if it must run in batches.

    Raises ConfigError if the batch of the trigger is too short.
    """
    batch = _batch(frame.sparkSession, trigger, what)
    reasons = check(frame, target)
    if reasons:
        _log.warning("%s runs in batches, as it cannot run in real-time mode: %s", what, "; ".join(reasons))
        return None

    def start(name: str, checkpoint: str) -> StreamingQuery:
        return _start(frame, target, batch, name, checkpoint)

    return start


def start_real_time(
    frame: DataFrame,
    url: str,
    topic: Topic[Any] | str | None,
    *,
    checkpoint: str,
    name: str,
    key: str | Sequence[str] | Column | None = None,
    batch: str = "5 minutes",
    client: ConnectOptions | None = None,
) -> StreamingQuery:
    """Write a streaming frame to a topic in real-time mode, without a pipeline.

    `batch` is the interval of checkpoints, not the latency of a record. Raises ConfigError with all reasons if the
    query cannot run this way, and PipelineError if Spark has too few task slots, or the checkpoint was written by
    batches.
    """
    target = TopicTarget(url, topic, key=key, guarantee=Guarantee.AT_LEAST_ONCE, client=client)
    length = _batch(frame.sparkSession, RealTime(batch), f"query {name!r}")
    reasons = check(frame, target)
    if reasons:
        raise ConfigError(f"query {name!r} cannot run in real-time mode: {'; '.join(reasons)}")
    return _start(frame, target, length, name, checkpoint)


def sink_options(bootstrap: str, client: ConnectOptions) -> dict[str, str]:
    """The options of Spark's Kafka sink: broker and client, and no waiting for further records before sending."""
    options = options_of(client)
    connector = connector_options(bootstrap, TopicSelection(()), client)
    return {
        **{name: value for name, value in connector.items() if name not in _OF_READERS},
        "kafka.acks": str(options.acks),
        "kafka.linger.ms": "0",
        "kafka.compression.type": "none",
    }


def _start(frame: DataFrame, target: TopicTarget, batch: str, name: str, checkpoint: str) -> StreamingQuery:
    spark = frame.sparkSession
    client = client_with(target.url, target.client)
    rows = _rows_of(frame, target)
    _check_checkpoint(frame, checkpoint, name)
    needed = planned(rows)
    fitting = shuffle_partitions_for(spark, needed, f"query {name!r}")
    with target.connect() as connection:
        topics_for(target, connection)
    writer = (
        rows.writeStream.format("kafka")
        .queryName(name)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .options(**sink_options(_bootstrap(target.url, client), client))
    )
    return _begin(frame, writer, batch, needed, fitting)


def _begin(
    frame: DataFrame, writer: DataStreamWriter, batch: str, needed: RealTimePlan, fitting: int | None
) -> StreamingQuery:
    writer.trigger(realTime=batch)  # type: ignore[call-overload]  # missing in the stub
    allowed = None if stateful_operators(frame) else "true"
    spark = frame.sparkSession
    with (
        _starting,
        _set_while_starting(spark, SHUFFLE_PARTITIONS, fitting),
        _set_while_starting(spark, _CONTINUES_BATCHES, allowed),
    ):
        query = writer.start()
    hold(query, needed, fitting)
    return query


def _check_checkpoint(frame: DataFrame, checkpoint: str, name: str) -> None:
    """Raise CheckpointMismatchError for state written by batches: real-time mode has another format."""
    commits = StateFolder(checkpoint, frame.sparkSession).below("commits")
    numbers = [each for each in commits.names() if each.isdecimal()]
    if not numbers or not stateful_operators(frame):
        return
    last = commits.read(max(numbers, key=int)) or ""
    if last.partition("\n")[0] == _OF_BATCHES:
        raise CheckpointMismatchError(
            f"the state of query {name!r} in {checkpoint} was written by batches, and real-time mode cannot continue "
            f"from it: rename the query to start over, or keep running it in batches"
        )


def _rows_of(frame: DataFrame, target: TopicTarget) -> DataFrame:
    """The rows for Spark's Kafka sink, without timestamps: it does not support them, and sets the time of sending."""
    topic = F.col("topic") if target.name is None else F.lit(target.name)
    return target.encoded(frame).select("key", "value", "headers", topic.alias("topic"), "partition")


def _refused_target(frame: DataFrame, target: TopicTarget) -> list[str]:
    reasons = []
    if not isinstance(parse_url(target.url), KafkaUrl | LogUrl):
        reasons.append(
            f"{without_password(target.url)} is not Kafka: the target must be a topic of a kafka: or log: URL"
        )
    if not has_connector(frame.sparkSession):
        reasons.append("Spark's Kafka connector is missing: run `penstock spark jars` once")
    if target.guarantee is not Guarantee.AT_LEAST_ONCE:
        reasons.append("results are delivered at least once: set guarantee='at-least-once'")
    return reasons


def _batch(spark: SparkSession, trigger: RealTime, what: str) -> str:
    length_us = microseconds(trigger.batch, f"{what}: RealTime(batch=...)")
    units = jvm_of(spark).org.apache.spark.network.util.JavaUtils  # the setting may have a unit
    shortest_ms = int(units.timeStringAsMs(spark.conf.get(_SHORTEST)))
    if length_us < shortest_ms * 1000:
        raise ConfigError(
            f"{what}: RealTime({trigger.batch!r}) is shorter than Spark's minimum of {shortest_ms} ms. It is the "
            "interval of checkpoints, not the latency of records; the default of RealTime() is 5 minutes"
        )
    return interval(length_us)


def _bootstrap(url: str, client: Mapping[str, Any]) -> str:
    where = parse_url(url)
    if isinstance(where, KafkaUrl):
        return where.bootstrap
    assert isinstance(where, LogUrl)
    return held_broker(f"log:{where.folder.absolute()}", client).bootstrap


@contextmanager
def _set_while_starting(spark: SparkSession, name: str, value: int | str | None) -> Iterator[None]:
    """Change a setting of the session while a query is started, which keeps it; None changes nothing."""
    if value is None:
        yield
        return
    before = spark.conf.get(name, None)
    spark.conf.set(name, str(value))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
