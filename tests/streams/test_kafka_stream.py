"""A topic of Kafka as a stream: appending, finding places, and reading at any of them."""

from __future__ import annotations

import threading
import time

import pytest

import penstock
from penstock.abc import Feature, Feeding, Grouping, Stream, TopicStream
from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import NewRecord, Position
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh
from tests.servers import Penstock
from tests.streams.kafka_feeds import TIMEOUT_S, commit_transaction, fill, filled_topic
from tests.streams.test_kafka_feed import delete_before


def test_a_connection_is_a_system_of_streams_with_feeds_and_groups(stream: penstock.Connection) -> None:
    topic: TopicStream = stream.open_topic("orders")
    assert isinstance(stream, Stream)
    assert isinstance(topic, Feeding)
    assert isinstance(topic, Grouping)
    assert topic.topic == "orders"
    assert topic.features == stream.features
    assert Feature.IDEMPOTENCE in stream.features


def test_without_all_acknowledgements_a_record_may_be_stored_twice_and_the_features_say_so(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}", acks=1) as connection:
        assert Feature.IDEMPOTENCE not in connection.features
        assert Feature.GROUPS in connection.features


def test_what_is_appended_can_be_read(either: penstock.Connection) -> None:
    topic = filled_topic(either, (0, 0))
    sent = [
        NewRecord(topic, b"a", b"key", (("h", b"1"),), 1_700_000_000_000, 1),
        NewRecord(topic, b"b", partition=1),
    ]
    with_stream = either.open_topic(topic)
    places = [receipt.result(TIMEOUT_S) for receipt in with_stream.append(sent)]
    assert [(place.partition, place.offset) for place in places] == [(1, 0), (1, 1)]
    first, second = with_stream.read(1, 0, 10, TIMEOUT_S)
    assert (first.key, first.value, first.headers, first.timestamp_ms) == (
        b"key",
        b"a",
        (("h", b"1"),),
        1_700_000_000_000,
    )
    assert second.value == b"b"
    assert with_stream.partitions() == (0, 1)


def test_a_record_that_cannot_be_sent_has_a_receipt_that_says_so_and_the_others_are_stored(
    stream: penstock.Connection,
) -> None:
    topic = filled_topic(stream, (0,))
    receipts = stream.open_topic(topic).append(
        [NewRecord(topic, b"a"), NewRecord(topic, b"x" * 200_000_000), NewRecord(topic, b"c")]
    )
    assert receipts[1].done
    assert "too large" in str(receipts[1].error)
    assert [receipts[index].result(TIMEOUT_S).offset for index in (0, 2)] == [0, 1]
    with pytest.raises(ConfigError, match="cannot be appended"):
        stream.open_topic(topic).append([NewRecord("another", b"")])


def test_reading_again_gives_the_same(stream: penstock.Connection) -> None:
    topic = stream.open_topic(filled_topic(stream, (100,)))
    for start in (0, 50, 0, 99, 3):
        batch = topic.read(0, start, 5, TIMEOUT_S)
        assert (batch.start, batch.next) == (start, batch[-1].offset + 1)
        assert [int(value or b"") for value in batch.values()] == list(range(start, min(100, start + 5)))[: len(batch)]
    topic.close()


def test_reads_that_follow_on_give_everything_once(stream: penstock.Connection) -> None:
    topic = stream.open_topic(filled_topic(stream, (2500,)))
    numbers: list[int] = []
    at = 0
    while at < 2500:
        batch = topic.read(0, at, 99, TIMEOUT_S)
        assert 0 < len(batch) <= 99
        assert batch.start == at
        at = batch.next
        numbers += [int(value or b"") for value in batch.values()]
    assert numbers == list(range(2500))
    topic.close()


def test_an_empty_read_has_seen_the_end(stream: penstock.Connection) -> None:
    topic = stream.open_topic(filled_topic(stream, (3,)))
    assert len(topic.read(0, 0, 10, 0.0)) > 0, "there are records, so they come even without a wait"
    begun_s = time.monotonic()
    batch = topic.read(0, 3, 10, 0.2)
    assert (len(batch), batch.start, batch.next) == (0, 3, 3)
    assert time.monotonic() - begun_s >= 0.19
    threading.Timer(0.1, lambda: fill(stream, topic.topic, [3])).start()
    assert topic.read(0, 3, 10, TIMEOUT_S).values() == [b"3"]
    topic.close()


def test_a_read_passes_markers_and_starts_where_it_was_asked_to(either: penstock.Connection) -> None:
    name = filled_topic(either, (0,))
    commit_transaction(either, name, [b"0"])
    topic = either.open_topic(name)
    batch = topic.read(0, 1, 10, 0.0)
    assert (len(batch), batch.start, batch.next) == (0, 1, 2)
    commit_transaction(either, name, [b"2"])
    batch = topic.read(0, 1, 10, TIMEOUT_S)
    assert (batch.values(), batch.start) == ([b"2"], 1)
    assert batch.next >= 3
    topic.close()


def test_positions_are_found(either: penstock.Connection) -> None:
    name = filled_topic(either, (0,))
    topic = either.open_topic(name)
    receipts = topic.append([NewRecord(name, b"", timestamp_ms=1_700_000_000_000 + 1000 * i) for i in range(5)])
    for receipt in receipts:
        receipt.result(TIMEOUT_S)
    delete_before(either, name, 1)
    assert topic.locate(0, Position.EARLIEST) == 1
    assert topic.locate(0, Position.LATEST) == 5
    assert topic.locate(0, Position.at_time(1_700_000_002_500)) == 3
    assert topic.locate(0, Position.at_time(1_800_000_000_000)) == 5
    assert topic.locate(0, Position.at_pointer(77)) == 77
    assert topic.span(0) == (1, 5)
    with pytest.raises(ConfigError, match="is not a pointer"):
        topic.locate(0, Position.at_pointer("1-0"))
    with pytest.raises(OffsetOutOfRangeError):
        topic.read(0, 0, 10, 1.0)
    assert len(topic.read(0, 1, 10, TIMEOUT_S)) > 0, "after the error it can be read elsewhere"


def test_what_is_not_there_is_an_error(stream: penstock.Connection) -> None:
    missing = stream.open_topic(fresh())
    with pytest.raises(UnknownTopicError):
        missing.partitions()
    with pytest.raises(UnknownTopicError):
        missing.read(0, 0, 1, 0)
    one = stream.open_topic(filled_topic(stream, (1,)))
    for ask in (lambda: one.span(1), lambda: one.locate(1, Position.LATEST), lambda: one.read(1, 0, 1, 0)):
        with pytest.raises(UnknownTopicError):
            ask()
    with pytest.raises(ConfigError, match="limit"):
        one.read(0, 0, 0, 0)


def test_more_partitions_than_feeds_are_kept_can_be_read_from_several_threads(stream: penstock.Connection) -> None:
    topic = stream.open_topic(filled_topic(stream, (3,) * 12))
    counts: list[int] = []

    def read_some(first: int) -> None:
        counts.extend(
            sum(len(topic.read(partition, start, 1, TIMEOUT_S)) for start in range(3))
            for partition in range(first, 12, 2)
        )

    threads = [threading.Thread(target=read_some, args=(each,)) for each in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [3] * 12
    topic.close()


def test_a_closed_stream_says_so_and_has_settled_what_was_appended(stream: penstock.Connection) -> None:
    topic = kafka_of(stream).open_topic(filled_topic(stream, (0,)))
    receipts = topic.append([NewRecord(topic.topic, b"x") for _ in range(100)])
    topic.close()
    topic.close()
    assert all(receipt.done for receipt in receipts)
    for use in (topic.partitions, topic.feed, lambda: topic.read(0, 0, 1, 0), lambda: topic.append([])):
        with pytest.raises(ConnectionClosedError):
            use()
