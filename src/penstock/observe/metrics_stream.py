"""The metrics of a whole stream, from one look at it: who reads it, what was given up, how pipelines get on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.observe.facts import Snapshot
from penstock.observe.metrics_definition import Definition, gauge
from penstock.streams.url import without_password

_OF_READER: Final = ("group", "topic", "partition")
_OF_QUERY: Final = ("pipeline", "query")

STREAM_UP: Final = gauge(
    "penstock_stream_up",
    (),
    "1 when the stream could be asked; 0 while it cannot, and all else here is then what was last known.",
    "0: see that the broker runs and can be reached from here.",
)
STREAM_LOOKED: Final = gauge(
    "penstock_stream_looked_timestamp_seconds",
    (),
    "When the stream was last looked at, in seconds since 1970.",
    "Minutes ago: `penstock metrics` hangs or starves; restart it, and look at its log.",
)
STREAM_LOOK_SECONDS: Final = gauge(
    "penstock_stream_look_seconds",
    (),
    "How long one look at everything takes.",
    "Near the time between looks: look less often (--every).",
)
TOPIC_PARTITIONS: Final = gauge(
    "penstock_topic_partitions", ("topic",), "Partitions of a topic.", "More readers than these have nothing to do."
)
TOPIC_RECORDS: Final = gauge(
    "penstock_topic_records",
    ("topic",),
    "Places between the first record and the end, which compaction and transactions may have thinned out.",
    "Growing without end: the topic has no retention.",
)
TOPIC_SIZE: Final = gauge(
    "penstock_topic_size_bytes", ("topic",), "Bytes on disk, where the stream tells.", "Plan disk and retention by it."
)
TOPIC_RATE: Final = gauge(
    "penstock_topic_append_rate",
    ("topic",),
    "Records appended in a second, of late.",
    "0 where there should be some: its producers have stopped.",
)
GROUP_MEMBERS: Final = gauge(
    "penstock_group_member_count",
    ("group",),
    "Members of a group.",
    "0 with lag: nobody reads; start it, or delete the group if it is not needed any more.",
)
GROUP_RATE: Final = gauge(
    "penstock_group_read_rate",
    ("group",),
    "Records read in a second, of late.",
    "0 with lag and members: they hang, or fail on and on; look at their log and health.",
)
GROUP_DRAIN: Final = gauge(
    "penstock_group_time_to_drain_seconds",
    ("group",),
    "When it will have caught up if all goes on as of late. Missing: never, or it is not known yet.",
    "Missing while lag grows: it will not catch up by itself; add workers or members.",
)
GROUP_GROWING: Final = gauge(
    "penstock_group_lag_growing",
    ("group",),
    "1 while more comes in than the group reads.",
    "For minutes: it is too slow; see its handler seconds.",
)
READER_LAG: Final = gauge(
    "penstock_reader_lag_records",
    _OF_READER,
    "Records that a group has not read in a partition.",
    "Compare partitions: one alone that lags is stuck, or has all the hot keys.",
)
READER_LAG_SECONDS: Final = gauge(
    "penstock_reader_lag_seconds",
    _OF_READER,
    "How long the oldest record that it has not read has waited.",
    "This is what users feel: alert on it rather than on records.",
)
READER_TIME_TO_LOSS: Final = gauge(
    "penstock_reader_time_to_loss_seconds",
    _OF_READER,
    "When retention will delete records that it has not read, if both go on as of late. Missing: never.",
    "Below a day: raise the topic's retention now, then make the reader faster.",
)
READER_LOST: Final = gauge(
    "penstock_reader_lost_records",
    _OF_READER,
    "Records that expired before it read them, beyond where it stands.",
    "Above 0: they are lost to this group. Raise retention before it happens again.",
)
LETTERS_WAITING: Final = gauge(
    "penstock_dead_letters_waiting",
    ("place",),
    "Dead letters that wait for somebody. An upper bound where counting them would take long.",
    "Above 0: `penstock dlq list`, mend the cause, `penstock dlq redrive`.",
)
QUERY_RUNNING: Final = gauge(
    "penstock_query_running",
    _OF_QUERY,
    "1 while the query of a pipeline runs, as its folder tells; this and the rest also for pipelines on other machines "
    "that share the folder.",
    "0 unwanted: `penstock pipelines` shows its last error.",
)
QUERY_LAG: Final = gauge(
    "penstock_query_lag_records",
    _OF_QUERY,
    "Records in its sources that it has not read.",
    "Rising: it needs more cores, or larger batches.",
)
QUERY_ROWS_PER_S: Final = gauge(
    "penstock_query_rows_rate", _OF_QUERY, "Rows processed in a second, in its last batch.", "Compare with what comes."
)
QUERY_BATCH_SECONDS: Final = gauge(
    "penstock_query_batch_seconds",
    _OF_QUERY,
    "How long its last batch took.",
    "This is the least that results are late. Rising with the state: see state rows.",
)
QUERY_ROWS_LATE: Final = gauge(
    "penstock_query_late_rows",
    _OF_QUERY,
    "Rows of this run that came when their windows were closed.",
    "Rising: give more grace, or look at what delays the producers.",
)
QUERY_STATE_ROWS: Final = gauge(
    "penstock_query_state_rows",
    _OF_QUERY,
    "Rows that its stateful operators keep.",
    "Growing without end: a watermark is missing, or too long.",
)
QUERY_RESTARTS: Final = gauge(
    "penstock_query_restarts",
    _OF_QUERY,
    "Times this run was started again after an error.",
    "Rising: it survives, and its error will not go away by itself; `penstock pipelines` shows it.",
)

STREAM: Final = (
    STREAM_UP,
    STREAM_LOOKED,
    STREAM_LOOK_SECONDS,
    TOPIC_PARTITIONS,
    TOPIC_RECORDS,
    TOPIC_SIZE,
    TOPIC_RATE,
    GROUP_MEMBERS,
    GROUP_RATE,
    GROUP_DRAIN,
    GROUP_GROWING,
    READER_LAG,
    READER_LAG_SECONDS,
    READER_TIME_TO_LOSS,
    READER_LOST,
    LETTERS_WAITING,
    QUERY_RUNNING,
    QUERY_LAG,
    QUERY_ROWS_PER_S,
    QUERY_BATCH_SECONDS,
    QUERY_ROWS_LATE,
    QUERY_STATE_ROWS,
    QUERY_RESTARTS,
)
"""What `penstock metrics` exports of a whole stream."""


class _Families:
    """One family for each definition, filled in as facts are met."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {each.name: each.gauge() for each in STREAM}

    def put(self, definition: Definition, value: float | None, *labels: str) -> None:
        """None is what nobody knows: then there is no sample."""
        if value is not None:
            self._families[definition.name].add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        yield from self._families.values()


def families(snapshot: Snapshot) -> Iterator[Metric]:
    """A snapshot as metrics."""
    found = _Families()
    found.put(STREAM_UP, snapshot.problem is None)
    found.put(STREAM_LOOKED, snapshot.at_ms / 1000)
    found.put(STREAM_LOOK_SECONDS, snapshot.took_s)
    for topic in snapshot.topics.values():
        if not topic.is_internal:
            found.put(TOPIC_PARTITIONS, len(topic.partitions), topic.name)
            found.put(TOPIC_RECORDS, topic.records, topic.name)
            found.put(TOPIC_SIZE, topic.size_bytes, topic.name)
            found.put(TOPIC_RATE, topic.rate_per_s, topic.name)
    _put_groups(found, snapshot)
    for place in snapshot.letters.values():
        found.put(LETTERS_WAITING, place.waiting, without_password(place.spec))
    _put_queries(found, snapshot)
    yield from found.all()


def _put_groups(found: _Families, snapshot: Snapshot) -> None:
    for group in snapshot.groups.values():
        found.put(GROUP_MEMBERS, group.members, group.name)
        found.put(GROUP_RATE, group.rate_per_s, group.name)
        found.put(GROUP_DRAIN, group.time_to_drain_s, group.name)
        found.put(GROUP_GROWING, group.is_growing, group.name)
        for reader in group.readers:
            labels = (reader.group, reader.topic, str(reader.partition))
            found.put(READER_LAG, reader.lag, *labels)
            found.put(READER_LAG_SECONDS, reader.lag_s, *labels)
            found.put(READER_TIME_TO_LOSS, reader.time_to_loss_s, *labels)
            found.put(READER_LOST, reader.lost, *labels)


def _put_queries(found: _Families, snapshot: Snapshot) -> None:
    for pipeline in snapshot.pipelines.values():
        for query in pipeline.queries:
            labels = (pipeline.name, query.query)
            found.put(QUERY_RUNNING, pipeline.is_running and query.state == "running", *labels)
            found.put(QUERY_LAG, query.lag, *labels)
            found.put(QUERY_ROWS_PER_S, query.rows_per_s, *labels)
            found.put(QUERY_BATCH_SECONDS, query.batch_s, *labels)
            found.put(QUERY_ROWS_LATE, query.rows_late, *labels)
            found.put(QUERY_STATE_ROWS, query.state_rows, *labels)
            found.put(QUERY_RESTARTS, query.restarts, *labels)


class StreamCollector(Collector):
    """Gives what was last seen to whoever scrapes; it never waits for the stream."""

    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        yield from families(self._latest())

    def describe(self) -> Iterator[Metric]:
        """Nothing: what there is to tell of is known when it is asked for."""
        yield from ()


def registry_of(latest: Callable[[], Snapshot]) -> CollectorRegistry:
    """The metrics of a stream, for a server; `latest` gives what was last seen of it, at once."""
    registry = CollectorRegistry()
    registry.register(StreamCollector(latest))
    return registry
