"""A feed of Kafka's streams: partitions read ahead, without a group."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

import penstock
from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import NewRecord, Record
from penstock.streams.kafka.reading.feed import KafkaFeed
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh
from tests.servers import Penstock
from tests.streams.kafka_feeds import TIMEOUT_S, Collected, commit_transaction, fill, filled_topic


def feed_of(connection: penstock.Connection, topic: str, **starts: int) -> KafkaFeed:
    feed = kafka_of(connection).open_topic(topic).feed()
    for partition, start in starts.items():
        feed.add(int(partition.removeprefix("p")), start)
    return feed


def delete_before(connection: penstock.Connection, topic: str, offset: int, partition: int = 0) -> None:
    place = TopicPartition(topic, partition, offset)
    kafka_of(connection).administration.admin.delete_records([place])[place].result(TIMEOUT_S)


def test_all_partitions_come_in_order_and_each_batch_follows_on(either: penstock.Connection) -> None:
    topic = filled_topic(either, (5000, 1, 300))
    feed = feed_of(either, topic, p0=0, p1=0, p2=100)
    collected = Collected(feed)
    collected.step_until("all is read", lambda: collected.count() == 5201)
    assert [collected.numbers(partition) for partition in range(3)] == [list(range(5000)), [0], list(range(100, 300))]
    assert collected.next == {0: 5000, 1: 1, 2: 300}
    feed.close()


def test_a_poll_gives_no_more_than_its_limit(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (10, 10))
    feed = feed_of(stream, topic, p0=0, p1=0)
    collected = Collected(feed, limit=3)
    collected.step_until("all is read", lambda: collected.count() == 20)
    assert collected.polls >= 7
    with pytest.raises(ConfigError, match="limit=0"):
        feed.poll(0, 0)
    feed.close()


def test_columns_and_records_of_a_batch_tell_the_same(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic)
    sent = [
        NewRecord(topic, b"v0", b"k0", timestamp_ms=1_700_000_000_000),
        NewRecord(topic, None, b"k1", (("a", b"1"), ("a", None))),
        NewRecord(topic, b"", None),
    ]
    for receipt in stream.open_topic(topic).append(sent):
        receipt.result(TIMEOUT_S)
    feed = feed_of(stream, topic, p0=0)
    batches = [batch for batch in feed.poll(10, TIMEOUT_S) if batch]
    while sum(map(len, batches)) < 3:
        batches += feed.poll(10, TIMEOUT_S)
    records = [record for batch in batches for record in batch]
    assert [(each.key, each.value, each.headers) for each in records] == [
        (each.key, each.value, each.headers) for each in sent
    ]
    assert records[0] == Record(topic, 0, 0, b"k0", b"v0", (), 1_700_000_000_000)
    assert [key for batch in batches for key in list(batch.keys())] == [b"k0", b"k1", None]
    assert [value for batch in batches for value in batch.values()] == [b"v0", None, b""]
    assert [pointer for batch in batches for pointer in batch.pointers()] == [0, 1, 2]
    assert [batch.pointer(i) for batch in batches for i in range(len(batch))] == [0, 1, 2]
    assert [batch[i].key for batch in batches for i in batch.with_headers()] == [b"k1"]
    assert [record for batch in batches for record in batch[:]] == records
    assert [record for batch in batches for record in batch.records] == records
    feed.close()


def test_a_marker_at_the_end_is_passed_by_an_empty_batch_or_the_last_one(either: penstock.Connection) -> None:
    topic = filled_topic(either, (0,))
    commit_transaction(either, topic, [b"0", b"1"])
    feed = feed_of(either, topic, p0=0)
    collected = Collected(feed)
    collected.step_until("the marker is passed", lambda: collected.next.get(0) == 3)
    commit_transaction(either, topic, [b"3"])
    fill(either, topic, [5])
    collected.step_until("the next records come", lambda: collected.next.get(0) == 6)
    assert collected.numbers() == [0, 1, 3, 5]
    feed.close()


def test_pointers_with_gaps_are_those_of_the_records(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (0,))
    for number in (0, 2, 4):  # each is followed by a marker
        commit_transaction(stream, topic, [str(number).encode()])
    feed = feed_of(stream, topic, p0=0)
    pointers: list[int] = []
    for _ in range(20):
        for batch in feed.poll(100, 0.2):
            pointers += batch.pointers()
            assert [batch.pointer(index) for index in range(len(batch))] == list(batch.pointers())
        if len(pointers) == 3:
            break
    assert pointers == [0, 2, 4]
    feed.close()


def test_records_of_an_open_or_aborted_transaction_are_not_seen(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1,))
    producer = Producer({"bootstrap.servers": stream.bootstrap, "transactional.id": fresh("txn")})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"never", partition=0)
    producer.flush(TIMEOUT_S)
    feed = feed_of(stream, topic, p0=0)
    collected = Collected(feed)
    collected.step_until("the record before it comes", lambda: collected.count() == 1)
    assert not collected.step(0.3)
    producer.abort_transaction(TIMEOUT_S)
    fill(stream, topic, [7])
    collected.step_until("the record behind it comes", lambda: collected.count() == 2)
    assert collected.numbers() == [0, 7]
    feed.close()


def test_a_paused_partition_is_silent_and_goes_on_where_it_was(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (500, 500))
    feed = feed_of(stream, topic, p0=0, p1=0)
    feed.pause(0)
    collected = Collected(feed, limit=50)
    collected.step_until("the other one is read", lambda: len(collected.numbers(1)) == 500)
    assert 0 not in collected.values
    feed.resume(0)
    collected.step_until("it goes on", lambda: len(collected.numbers(0)) == 500)
    assert collected.numbers(0) == list(range(500))
    assert collected.numbers(1) == list(range(500))
    feed.close()


def test_a_partition_that_is_paused_for_long_is_not_fetched_into_memory(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (40_000, 40_000))
    feed = feed_of(stream, topic, p0=0, p1=0)
    feed.pause(0)
    collected = Collected(feed, limit=10_000)
    collected.step_until("the other one is read", lambda: len(collected.numbers(1)) == 40_000)
    assert len(feed._intake.readings[0].held) < 20_000
    feed.resume(0)
    collected.step_until("it goes on", lambda: len(collected.numbers(0)) == 40_000)
    assert collected.numbers(0) == list(range(40_000))
    feed.close()


def test_pausing_and_resuming_at_every_poll_loses_and_repeats_nothing(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (3000, 3000, 3000))
    feed = feed_of(stream, topic, p0=0, p1=0, p2=0)
    collected = Collected(feed, limit=70)

    def turn() -> bool:
        feed.pause(collected.polls % 3)
        feed.resume((collected.polls + 1) % 3)
        return collected.count() == 9000

    collected.step_until("all is read", turn)
    assert all(collected.numbers(partition) == list(range(3000)) for partition in range(3))
    feed.close()


def test_a_feed_whose_partitions_are_all_paused_waits_and_can_be_woken(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (5,))
    feed = feed_of(stream, topic, p0=0)
    feed.pause(0)
    threading.Timer(0.1, feed.wake).start()
    begun_s = time.monotonic()
    assert not feed.poll(10, TIMEOUT_S)
    assert 0.05 < time.monotonic() - begun_s < 5
    feed.close()


def test_a_partition_can_be_removed_and_added_elsewhere(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1000, 1000))
    feed = feed_of(stream, topic, p0=0, p1=0)
    assert feed.poll(10, TIMEOUT_S)
    feed.remove(0)
    feed.remove(0)
    seen = {batch.partition for _ in range(5) for batch in feed.poll(100, 0.1)}
    assert seen <= {1}
    feed.add(0, 990)
    feed.add(1, 995)
    collected = Collected(feed)
    collected.step_until("both are at their end", lambda: collected.count() == 15)
    assert (collected.numbers(0), collected.numbers(1)) == (list(range(990, 1000)), list(range(995, 1000)))
    feed.add(0, 0)  # backwards
    again = Collected(feed)
    again.step_until("it is read again", lambda: again.count() == 1000)
    assert again.numbers(0) == list(range(1000))
    feed.close()


def test_wake_ends_a_poll_that_waits(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (0,))
    feed = feed_of(stream, topic, p0=0)
    threading.Timer(0.2, feed.wake).start()
    begun_s = time.monotonic()
    assert not feed.poll(10, TIMEOUT_S)
    assert 0.1 < time.monotonic() - begun_s < 5
    feed.wake()
    begun_s = time.monotonic()
    assert not feed.poll(10, TIMEOUT_S), "a wake before the poll counts"
    assert time.monotonic() - begun_s < 5
    begun_s = time.monotonic()
    assert not feed.poll(10, 0.3), "but only once"
    assert time.monotonic() - begun_s >= 0.29
    feed.close()


def test_a_record_is_handed_over_while_the_feed_waits(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1,))
    feed = feed_of(stream, topic, p0=0)
    collected = Collected(feed)
    collected.step_until("the first one comes", lambda: collected.count() == 1)
    threading.Timer(0.2, lambda: fill(stream, topic, [1])).start()
    assert [batch.values() for batch in feed.poll(10, TIMEOUT_S)] == [[b"1"]]
    feed.close()


def test_an_offset_that_has_expired_is_an_error_that_names_its_partition_and_the_others_go_on(
    either: penstock.Connection,
) -> None:
    topic = filled_topic(either, (20, 20))
    delete_before(either, topic, 15)
    feed = feed_of(either, topic, p0=3, p1=0)
    collected = Collected(feed)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        collected.step_until("the error comes", lambda: False)
    assert (raised.value.partition, raised.value.offset, raised.value.start, raised.value.end) == (0, 3, 15, 20)
    collected.step_until("the other partition is read", lambda: len(collected.numbers(1)) == 20)
    assert 0 not in collected.values
    feed.add(0, raised.value.start)
    collected.step_until("it goes on where it was put", lambda: len(collected.numbers(0)) == 5)
    feed.close()


def test_an_offset_that_is_not_there_yet_is_an_error(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (5,))
    feed = feed_of(stream, topic, p0=6)
    with pytest.raises(OffsetOutOfRangeError, match="not been written"):
        Collected(feed).step_until("the error comes", lambda: False)
    feed.close()


def test_a_topic_or_partition_that_is_not_there_is_an_error(stream: penstock.Connection) -> None:
    feed = kafka_of(stream).open_topic(fresh()).feed()
    with pytest.raises(UnknownTopicError):
        feed.add(0, 0)
    feed.close()
    feed = kafka_of(stream).open_topic(filled_topic(stream, (1, 1))).feed()
    with pytest.raises(UnknownTopicError, match="no partition 2: it has 2"):
        feed.add(2, 0)
    feed.close()


def test_a_topic_that_is_deleted_while_it_is_read_is_an_error(
    either: penstock.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.streams.kafka.reading.polling.SILENCE_S", 0.2)
    topic = filled_topic(either, (1,))
    feed = feed_of(either, topic, p0=0)
    collected = Collected(feed)
    collected.step_until("its record comes", lambda: collected.count() == 1)
    either.delete_topic(topic)
    with pytest.raises(UnknownTopicError):
        collected.step_until("the error comes", lambda: False)
    feed.close()


def test_a_closed_feed_says_so_and_closing_ends_a_poll(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (0,))
    feed = feed_of(stream, topic, p0=0)
    threading.Timer(0.2, feed.close).start()
    begun_s = time.monotonic()
    with pytest.raises(ConnectionClosedError):
        feed.poll(10, TIMEOUT_S)
    assert time.monotonic() - begun_s < 10
    feed.close()
    with pytest.raises(ConnectionClosedError):
        feed.add(0, 0)


def test_closing_the_connection_closes_its_feeds(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}") as connection:
        feed = feed_of(connection, filled_topic(connection, (1,)), p0=0)
    with pytest.raises(ConnectionClosedError):
        feed.poll(1, 0)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Penstock]:
    with Penstock(tmp_path / "own") as running:
        yield running


def test_a_feed_goes_on_when_the_broker_is_back(own_server: Penstock) -> None:
    with penstock.connect(f"kafka://{own_server.bootstrap}") as connection:
        topic = filled_topic(connection, (10,))
        feed = feed_of(connection, topic, p0=0)
        collected = Collected(feed)
        collected.step_until("all is read", lambda: collected.count() == 10)
        own_server.process.kill()
        assert not collected.step(0.5)
        own_server.restart()
        fill(connection, topic, range(10, 20))
        collected.step_until("it goes on", lambda: collected.count() == 20)
        assert collected.numbers() == list(range(20))
        feed.close()
