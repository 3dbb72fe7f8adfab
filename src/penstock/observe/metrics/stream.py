"""The metrics of a whole stream, from a snapshot: its groups, dead letters, pipelines and captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.observe.facts import RUNNING_PHASES, Snapshot
from penstock.observe.metrics.definition import Definition, gauge
from penstock.streams.url import without_password

_OF_READER: Final = ("group", "topic", "partition")
_OF_QUERY: Final = ("pipeline", "query")

STREAM_UP: Final = gauge(
    "penstock_stream_up",
    (),
    "1 when the stream answered; 0 while it does not, and all other values are then the last known ones.",
    "0: check that the broker runs and can be reached from here.",
)
STREAM_LOOKED: Final = gauge(
    "penstock_stream_looked_timestamp_seconds",
    (),
    "When the stream was last looked at, in seconds since 1970.",
    "Minutes ago: `penstock metrics` hangs or starves; restart it, and read its log.",
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
    "Offsets between the first record and the end; compaction and transactions may leave fewer records.",
    "Growing without bound: the topic has no retention.",
)
TOPIC_SIZE: Final = gauge(
    "penstock_topic_size_bytes", ("topic",), "Bytes on disk, where the stream reports it.", "Use it to plan disks."
)
TOPIC_RATE: Final = gauge(
    "penstock_topic_append_rate",
    ("topic",),
    "Recent append rate, in records a second.",
    "0 where there should be some: its producers have stopped.",
)
GROUP_MEMBERS: Final = gauge(
    "penstock_group_member_count",
    ("group",),
    "Members of a group.",
    "0 with lag: nothing reads; start its consumers, or delete the group if it is no longer needed.",
)
GROUP_RATE: Final = gauge(
    "penstock_group_read_rate",
    ("group",),
    "Recent rate of reading, in records a second.",
    "0 with lag and members: they hang, or keep failing; look at their log and health.",
)
GROUP_DRAIN: Final = gauge(
    "penstock_group_time_to_drain_seconds",
    ("group",),
    "When it will have caught up at the recent rates. Missing: never, or unknown yet.",
    "Missing while lag grows: it will not catch up by itself; add workers or members.",
)
GROUP_GROWING: Final = gauge(
    "penstock_group_lag_growing",
    ("group",),
    "1 while more is appended than the group reads.",
    "For minutes: it is too slow; look at its handler seconds.",
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
    "How long its oldest unread record has waited.",
    "This is what users feel: alert on it rather than on records.",
)
READER_TIME_TO_LOSS: Final = gauge(
    "penstock_reader_time_to_loss_seconds",
    _OF_READER,
    "When retention will delete records that it has not read, at the recent rates. Missing: never.",
    "Below a day: raise the topic's retention now, then make the reader faster.",
)
READER_LOST: Final = gauge(
    "penstock_reader_lost_records",
    _OF_READER,
    "Records that expired before it read them, after its committed offset.",
    "Above 0: they are lost to this group. Raise retention before it happens again.",
)
LETTERS_WAITING: Final = gauge(
    "penstock_dead_letters_waiting",
    ("place",),
    "Dead letters that wait for a decision. An upper bound where counting them would take long.",
    "Above 0: `penstock dlq list`, fix the cause, `penstock dlq redrive`.",
)
QUERY_RUNNING: Final = gauge(
    "penstock_query_running",
    _OF_QUERY,
    "1 while the query of a pipeline runs, according to its folder; so these metrics also cover pipelines on other "
    "machines that share the folder.",
    "0 unexpectedly: `penstock pipelines` shows its last error.",
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
    "The minimum delay of results. Rising with the state: look at state rows.",
)
QUERY_ROWS_LATE: Final = gauge(
    "penstock_query_late_rows",
    _OF_QUERY,
    "Rows of this run that arrived after their windows were closed.",
    "Rising: allow more lateness, or look at what delays the producers.",
)
QUERY_STATE_ROWS: Final = gauge(
    "penstock_query_state_rows",
    _OF_QUERY,
    "Rows that its stateful operators keep.",
    "Growing without bound: a watermark is missing, or too long.",
)
QUERY_RESTARTS: Final = gauge(
    "penstock_query_restarts",
    _OF_QUERY,
    "How often this run was restarted after an error.",
    "Rising: it survives, but its error will not go away by itself; `penstock pipelines` shows it.",
)
CAPTURE_RUNNING: Final = gauge(
    "penstock_captures_running",
    ("capture",),
    "1 while the capture of a database reads its rows or changes; 0 when it was stopped, failed, waits or died.",
    "0 unexpectedly: `penstock lag` says why. The database keeps its log for it until the room is used up.",
)
CAPTURE_BEHIND: Final = gauge(
    "penstock_captures_behind_bytes",
    ("capture",),
    "The database's log after the last change that a capture has confirmed, as it last reported.",
    "Rising over minutes: the stream is slow, or one capture is not enough for all tables.",
)
CAPTURE_LOSS: Final = gauge(
    "penstock_captures_time_to_loss_seconds",
    ("capture",),
    "When the database will remove changes that a capture has not read, if it goes on as now; also of captures that do "
    "not run. Missing: never, or unknown. 0: they are lost, or may be.",
    "Below a day: start the capture, raise max_slot_wal_keep_size, or make room on the database's disk.",
)

STREAM: Final = tuple(each for each in list(globals().values()) if isinstance(each, Definition))


class _Families:
    """One metric family per definition, filled as facts are visited."""

    def __init__(self) -> None:
        self._families: dict[str, GaugeMetricFamily] = {each.name: each.gauge() for each in STREAM}

    def put(self, definition: Definition, value: float | None, *labels: str) -> None:
        """Add a sample, unless the value is None (unknown)."""
        if value is not None:
            self._families[definition.name].add_metric(labels, value)

    def all(self) -> Iterator[Metric]:
        yield from self._families.values()


def families(snapshot: Snapshot) -> Iterator[Metric]:
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
    for capture in snapshot.captures.values():
        found.put(CAPTURE_RUNNING, capture.phase in RUNNING_PHASES, capture.name)
        found.put(CAPTURE_BEHIND, capture.behind_bytes, capture.name)
        found.put(CAPTURE_LOSS, 0.0 if capture.is_lost else capture.time_to_loss_s, capture.name)
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
    """Exports the latest snapshot; never waits for the stream."""

    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        yield from families(self._latest())

    def describe(self) -> Iterator[Metric]:
        """Nothing: what exists is known at the scrape."""
        yield from ()


def registry_of(latest: Callable[[], Snapshot]) -> CollectorRegistry:
    """The metrics of a stream, for a server; `latest` returns the latest snapshot at once."""
    registry = CollectorRegistry()
    registry.register(StreamCollector(latest))
    return registry
