"""Real-time mode: records go through a query one by one, in milliseconds, instead of batch by batch.

Spark's own mode (`trigger(realTime=...)`) does the work, from its Kafka connector to its Kafka sink. What is here says
beforehand whether a query can run that way, chooses settings for short delays, sees that every task has a place, and
leaves queries that cannot to the batches of a pipeline, with one message that says why.

Results are written at least once: a query that is started again begins where the last batch ended, which is up to
`batch` ago, and writes what followed again. State, such as counts, is exact all the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import CheckpointMismatchError, ConfigError
from penstock.model import Guarantee
from penstock.serde import Topic
from penstock.spark.durations import interval, microseconds
from penstock.spark.folders import StateFolder
from penstock.spark.gateway import jvm_of
from penstock.spark.plans import stateful_operators
from penstock.spark.realtime_planning import planned
from penstock.spark.realtime_slots import SHUFFLE_PARTITIONS, hold, shuffle_partitions_for
from penstock.spark.sessions import has_connector
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.sink.topic_delivery import topics_for
from penstock.spark.source.held_brokers import held_broker
from penstock.spark.source.native import connector_options
from penstock.spark.triggers import RealTime
from penstock.streams.options import ConnectOptions, options_of
from penstock.streams.url import KafkaUrl, LogUrl, parse_url
from penstock.streams.url_settings import client_with

Start = Callable[[str, str], StreamingQuery]
"""Starts a query in real-time mode: of its name and its checkpoint."""

_SHORTEST: Final = "spark.sql.streaming.realTimeMode.minBatchDuration"
_OF_READERS: Final = ("subscribe", "includeHeaders", "kafka.isolation.level")
_OF_BATCHES: Final = "v1"
"""What the commits of a checkpoint begin with, where state was kept in the way of batches."""
_starting: Final = threading.Lock()
_log = logging.getLogger("penstock.spark")


def check(frame: DataFrame, target: TopicTarget) -> list[str]:
    """Why this frame cannot be written to this topic in real-time mode; nothing when it can.

    Spark's own planner and its list of allowed operators are asked. Nothing is read or written.
    """
    reasons = _refused_target(frame, target)
    return reasons or list(planned(_rows_of(frame, target)).reasons)


def plan(frame: DataFrame, target: TopicTarget, trigger: RealTime, what: str) -> Start | None:
    """How the query is started in real-time mode; None, with a warning that says why, where batches have to do.

    ConfigError when it is the length of the batch that is wrong.
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
    """Write a streaming frame to a topic in real-time mode, without a pipeline around it.

    `batch` is how often progress is kept, not how long a record takes. ConfigError when the query cannot run this way,
    with all reasons; PipelineError when Spark has too few task slots for it, or when the checkpoint is of batches.
    """
    target = TopicTarget(url, topic, key=key, guarantee=Guarantee.AT_LEAST_ONCE, client=client)
    length = _batch(frame.sparkSession, RealTime(batch), f"query {name!r}")
    reasons = check(frame, target)
    if reasons:
        raise ConfigError(f"query {name!r} cannot run in real-time mode: {'; '.join(reasons)}")
    return _start(frame, target, length, name, checkpoint)


def sink_options(bootstrap: str, client: ConnectOptions) -> dict[str, str]:
    """What Spark's Kafka sink is told: where to, as whom, and to send each record without waiting for another."""
    options = options_of(client)
    told = connector_options(bootstrap, "", client)
    return {
        **{name: value for name, value in told.items() if name not in _OF_READERS},
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
    writer.trigger(realTime=batch)  # type: ignore[call-overload]  # its stub does not know it yet
    with _starting, _Set(spark, {} if fitting is None else {SHUFFLE_PARTITIONS: str(fitting)}):
        query = writer.start()
    hold(query, needed, fitting)
    return query


def _check_checkpoint(frame: DataFrame, checkpoint: str, name: str) -> None:
    """CheckpointMismatchError for state that batches have kept: Spark keeps that of real-time mode in another way."""
    commits = StateFolder(checkpoint, frame.sparkSession).below("commits")
    numbers = [each for each in commits.names() if each.isdecimal()]
    if not numbers or not stateful_operators(frame):
        return
    last = commits.read(max(numbers, key=int)) or ""
    if last.partition("\n")[0] == _OF_BATCHES:
        raise CheckpointMismatchError(
            f"query {name!r} has kept state in batches, in {checkpoint}, and real-time mode cannot go on from it: give "
            f"the query another name to begin anew, or leave it in batches"
        )


def _rows_of(frame: DataFrame, target: TopicTarget) -> DataFrame:
    """The rows as Spark's Kafka sink takes them: it knows no timestamps, and gives records that of their sending."""
    topic = F.col("topic") if target.name is None else F.lit(target.name)
    return target.encoded(frame).select("key", "value", "headers", topic.alias("topic"), "partition")


def _refused_target(frame: DataFrame, target: TopicTarget) -> list[str]:
    reasons = []
    if not isinstance(parse_url(target.url), KafkaUrl | LogUrl):
        reasons.append(f"{target.url} is not Kafka's: results go to topics of kafka: and log: URLs")
    if not has_connector(frame.sparkSession):
        reasons.append("Spark's Kafka connector is not there: run `penstock spark jars` once")
    if target.guarantee is not Guarantee.AT_LEAST_ONCE:
        reasons.append("results are written at least once: say guarantee='at-least-once'")
    return reasons


def _batch(spark: SparkSession, trigger: RealTime, what: str) -> str:
    length_us = microseconds(trigger.batch, f"{what}: RealTime(batch=...)")
    units = jvm_of(spark).org.apache.spark.network.util.JavaUtils  # the setting is written with a unit, or without
    shortest_ms = int(units.timeStringAsMs(spark.conf.get(_SHORTEST)))
    if length_us < shortest_ms * 1000:
        raise ConfigError(
            f"{what}: RealTime({trigger.batch!r}) is shorter than the {shortest_ms} ms that Spark allows. It says how "
            "often progress is kept, not how long records take: RealTime() keeps it every 5 minutes"
        )
    return interval(length_us)


def _bootstrap(url: str, client: Mapping[str, Any]) -> str:
    where = parse_url(url)
    if isinstance(where, KafkaUrl):
        return where.bootstrap
    assert isinstance(where, LogUrl)
    return held_broker(f"log:{where.folder.absolute()}", client).bootstrap


class _Set:
    """Settings of a session while a query is started, which keeps those that it was started with."""

    def __init__(self, spark: SparkSession, settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._settings = settings
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: self._spark.conf.get(name, None) for name in self._settings}
        for name, value in self._settings.items():
            self._spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)
