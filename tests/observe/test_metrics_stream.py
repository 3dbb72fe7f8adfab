"""The metrics of a whole stream, made from one look at it."""

from __future__ import annotations

import dataclasses

from prometheus_client import CollectorRegistry

from penstock.observe.facts import (
    CaptureFacts,
    GroupFacts,
    LetterFacts,
    PartitionFacts,
    PipelineFacts,
    QueryFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)
from penstock.observe.metrics.stream import STREAM, families, registry_of
from tests.observe.samples import Samples

ORDERS = TopicFacts(
    "orders",
    (PartitionFacts("orders", 0, 10, 110, 4096), PartitionFacts("orders", 1, 0, 50, 1024)),
    rate_per_s=12.5,
)
READER = ReaderFacts("billing", "orders", 0, 60, 10, 110, member="m", lag_s=7.5, time_to_loss_s=3600.0, lost=0)
NEW_READER = ReaderFacts("billing", "orders", 1, None, 0, 50)
BILLING = GroupFacts(
    "billing", "stable", 2, (READER, NEW_READER), rate_per_s=10.0, time_to_drain_s=None, is_growing=True
)
QUERY = QueryFacts("spend", "running", 3, 100, 90, 4, 1, 17, 1.5, 66.0, 20, None, None, 1)
EVERYTHING = Snapshot(
    at_ms=1_700_000_000_000,
    topics={"orders": ORDERS, "__offsets": TopicFacts("__offsets", (), is_internal=True)},
    groups={"billing": BILLING},
    letters={"orders.dlq": LetterFacts("orders.dlq", 3)},
    pipelines={"usage@v2": PipelineFacts("usage@v2", "folder", True, (QUERY,))},
    took_s=0.25,
    captures={
        "shop": CaptureFacts("shop", "postgresql://db/shop", "dead", 1, behind_bytes=7, time_to_loss_s=60.0),
        "gone": CaptureFacts("gone", "postgresql://db/gone", "failed", 1, is_lost=True),
        "fine": CaptureFacts("fine", "postgresql://db/fine", "streaming", 1, behind_bytes=0),
    },
)


def scraped(snapshot: Snapshot) -> Samples:
    return Samples(registry_of(lambda: snapshot))


def test_a_snapshot_becomes_metrics() -> None:
    samples = scraped(EVERYTHING)
    of_reader = {"group": "billing", "topic": "orders", "partition": "0"}
    assert samples("penstock_reader_lag_records", **of_reader) == 50
    assert samples("penstock_reader_lag_seconds", **of_reader) == 7.5
    assert samples("penstock_reader_time_to_loss_seconds", **of_reader) == 3600
    assert samples("penstock_group_member_count", group="billing") == 2
    assert samples("penstock_group_lag_growing", group="billing") == 1
    assert samples("penstock_topic_records", topic="orders") == 150
    assert samples("penstock_topic_size_bytes", topic="orders") == 5120
    assert samples("penstock_topic_append_rate", topic="orders") == 12.5
    assert samples("penstock_dead_letters_waiting", place="orders.dlq") == 3
    assert samples("penstock_query_lag_records", pipeline="usage@v2", query="spend") == 17
    assert samples("penstock_query_running", pipeline="usage@v2", query="spend") == 1
    assert samples("penstock_captures_behind_bytes", capture="shop") == 7
    assert samples.all("penstock_captures_time_to_loss_seconds", capture="shop") == [60]
    assert samples.all("penstock_captures_time_to_loss_seconds", capture="gone") == [0]
    assert samples.all("penstock_captures_time_to_loss_seconds", capture="fine") == []
    assert [samples("penstock_captures_running", capture=name) for name in ("shop", "gone", "fine")] == [0, 0, 1]
    assert samples("penstock_stream_up") == 1
    assert samples("penstock_stream_look_seconds") == 0.25


def test_what_nobody_knows_has_no_sample_rather_than_a_zero() -> None:
    samples = scraped(EVERYTHING)
    unread = {"group": "billing", "partition": "1"}
    assert not samples.all("penstock_reader_lag_records", **unread)
    assert not samples.all("penstock_reader_time_to_loss_seconds", **unread)
    assert not samples.all("penstock_group_time_to_drain_seconds")
    assert not samples.all("penstock_topic_size_bytes", topic="__offsets"), "internal topics are nobody's"


def test_a_stream_that_is_away_is_told_and_what_was_last_known_stays() -> None:
    samples = scraped(dataclasses.replace(EVERYTHING, problem="no broker answers"))
    assert samples("penstock_stream_up") == 0
    assert samples("penstock_reader_lag_records", group="billing", partition="0") == 50


def test_before_the_first_look_there_is_a_scrape_without_samples_of_topics() -> None:
    samples = scraped(Snapshot(0, problem="not looked yet"))
    assert samples.names == {
        "penstock_stream_up",
        "penstock_stream_looked_timestamp_seconds",
        "penstock_stream_look_seconds",
    }


def test_a_query_whose_process_is_gone_does_not_run_whatever_its_file_says() -> None:
    stale = PipelineFacts("usage", "folder", False, (QUERY,))
    samples = scraped(dataclasses.replace(EVERYTHING, pipelines={"usage": stale}))
    assert samples.all("penstock_query_running", pipeline="usage") == [0]


def test_names_with_quotes_and_line_breaks_reach_prometheus_whole() -> None:
    evil = 'a"b\\c\nd{}'
    group = GroupFacts(evil, "stable", 1, ())
    samples = scraped(dataclasses.replace(EVERYTHING, groups={evil: group}))
    assert samples("penstock_group_member_count", group=evil) == 1


def test_every_metric_of_a_stream_is_given_and_no_other() -> None:
    assert [family.name for family in families(EVERYTHING)] == [definition.name for definition in STREAM]
    assert isinstance(registry_of(lambda: EVERYTHING), CollectorRegistry)


def test_passwords_are_not_shown_to_whoever_scrapes() -> None:
    spec = "postgresql://me:secret@host:5432/db"
    samples = scraped(dataclasses.replace(EVERYTHING, letters={spec: LetterFacts(spec, 1)}))
    assert samples("penstock_dead_letters_waiting", place="postgresql://me@host:5432/db") == 1
