"""confluent-kafka (librdkafka) as a producer."""

from __future__ import annotations

import time
import zlib

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, TopicPartition

from tests.clients import confluent
from tests.clients.confluent import Received
from tests.clients.names import fresh
from tests.servers import Server

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def test_a_record_comes_back_with_its_key_headers_and_timestamp(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server)
    headers: confluent.Headers = [("trace", b"\x00\xff"), ("empty", b""), ("nothing", None), ("trace", b"again")]
    sender.produce(topic, b"value", b"key", headers=headers, timestamp=1_700_000_000_123, partition=0)
    sender.produce(topic, None, b"tombstone", timestamp=1_600_000_000_000, partition=0)
    sender.produce(topic, b"", b"", timestamp=1_700_000_000_124, partition=0)
    assert sender.flush(confluent.TIMEOUT_S) == 0
    assert confluent.read_to_end(server, topic) == [
        Received(0, 0, b"key", b"value", headers, TIMESTAMP_CREATE_TIME, 1_700_000_000_123),
        Received(0, 1, b"tombstone", None, [], TIMESTAMP_CREATE_TIME, 1_600_000_000_000),
        Received(0, 2, b"", b"", [], TIMESTAMP_CREATE_TIME, 1_700_000_000_124),
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_round_trips(server: Server, codec: str) -> None:
    topic = confluent.create_topic(server)
    values = [f"{number} ".encode() * 50 for number in range(300)]
    settings = {"compression.type": codec, "linger.ms": 20}
    assert confluent.produce(server, topic, values, settings) == list(range(300))
    received = confluent.read_to_end(server, topic)
    assert confluent.values_of(received) == values
    assert [record.offset for record in received] == list(range(300))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement_stores_the_record(server: Server, acks: str) -> None:
    topic = confluent.create_topic(server)
    delivered: list[tuple[KafkaError | None, int | None]] = []
    sender = confluent.producer(server, {"acks": acks})

    def note(error: KafkaError | None, message: Message) -> None:
        delivered.append((error, message.offset()))

    sender.produce(topic, b"first", partition=0, on_delivery=note)
    assert sender.flush(confluent.TIMEOUT_S) == 0
    # Without an acknowledgement the producer cannot know the offset.
    assert delivered == [(None, None if acks == "0" else 0)]
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"first"]


def test_keys_choose_the_partition_and_keep_their_order(server: Server) -> None:
    topic = confluent.create_topic(server, partitions=4)
    sender = confluent.producer(server, {"partitioner": "consistent"})
    for number in range(200):
        sender.produce(topic, str(number).encode(), f"key-{number % 10}".encode())
    assert sender.flush(confluent.TIMEOUT_S) == 0
    received = confluent.read_to_end(server, topic, range(4))
    assert len(received) == 200
    for record in received:
        assert record.key is not None
        assert record.partition == zlib.crc32(record.key) % 4
    for key in {record.key for record in received}:
        numbers = [int(record.value or b"") for record in received if record.key == key]
        assert numbers == sorted(numbers)


def test_a_record_of_a_topic_with_log_append_time_gets_the_time_of_the_broker(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    sender = confluent.producer(server)
    times: list[tuple[int, int]] = []
    sender.produce(topic, b"x", partition=0, timestamp=1, on_delivery=lambda _, sent: times.append(sent.timestamp()))
    assert sender.flush(confluent.TIMEOUT_S) == 0
    after_ms = int(time.time() * 1000)
    (record,) = confluent.read_to_end(server, topic)
    assert record.timestamp_type == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= record.timestamp_ms <= after_ms
    assert times == [(TIMESTAMP_LOG_APPEND_TIME, record.timestamp_ms)]


def test_a_record_larger_than_the_topic_allows_is_refused(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"max.message.bytes": "2000"})
    sender = confluent.producer(server)
    error = confluent.delivery_error(sender, topic, b"x" * 5000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert confluent.delivery_error(sender, topic, b"x" * 1500) is None
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"x" * 1500]


def test_the_limit_of_a_record_counts_what_is_stored_not_what_was_compressed(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"max.message.bytes": "2000"})
    sender = confluent.producer(server, {"compression.type": "gzip"})
    assert confluent.delivery_error(sender, topic, b"x" * 5000) is None
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"x" * 5000]


def test_a_compacted_topic_refuses_a_record_without_a_key(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"cleanup.policy": "compact"})
    sender = confluent.producer(server)
    error = confluent.delivery_error(sender, topic, b"value", key=None)
    assert error is not None
    assert error.code() == KafkaError.INVALID_RECORD
    assert confluent.delivery_error(sender, topic, b"value", key=b"key") is None
    assert [record.key for record in confluent.read_to_end(server, topic)] == [b"key"]


@pytest.mark.parametrize("limit", ["message.timestamp.after.max.ms", "message.timestamp.before.max.ms"])
def test_a_timestamp_too_far_from_the_clock_is_refused(server: Server, limit: str) -> None:
    topic = confluent.create_topic(server, settings={limit: "60000"})
    sender = confluent.producer(server)
    now_ms = int(time.time() * 1000)
    distance_ms = 3_600_000 if "after" in limit else -3_600_000
    errors: list[KafkaError | None] = []
    for timestamp_ms in (now_ms + distance_ms, now_ms, now_ms - distance_ms):
        sender.produce(
            topic, b"x", partition=0, timestamp=timestamp_ms, on_delivery=lambda error, _: errors.append(error)
        )
        assert sender.flush(confluent.TIMEOUT_S) == 0
    assert [error and error.code() for error in errors] == [KafkaError.INVALID_TIMESTAMP, None, None]


def test_producing_to_a_partition_that_does_not_exist_is_refused_by_the_client(server: Server) -> None:
    topic = confluent.create_topic(server, partitions=2)
    sender = confluent.producer(server)
    errors: list[KafkaError | None] = []
    sender.produce(topic, b"x", partition=2, on_delivery=lambda error, _: errors.append(error))
    assert sender.flush(confluent.TIMEOUT_S) == 0
    assert [error and error.code() for error in errors] == [KafkaError._UNKNOWN_PARTITION]


def test_an_idempotent_producer_keeps_order_across_many_batches(server: Server) -> None:
    topic = confluent.create_topic(server)
    settings = {"enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 7, "compression.type": "lz4"}
    values = [str(number).encode() for number in range(3000)]
    assert confluent.produce(server, topic, values, settings) == list(range(3000))
    assert confluent.values_of(confluent.read_to_end(server, topic)) == values


def test_a_producer_creates_a_topic_that_does_not_exist(server: Server) -> None:
    topic = fresh()
    assert confluent.produce(server, topic, [b"first"]) == [0]
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"first"]


def test_a_producer_told_not_to_create_topics_does_not(server: Server) -> None:
    topic = fresh()
    settings = {"allow.auto.create.topics": False, "topic.metadata.propagation.max.ms": 0}
    error = confluent.delivery_error(confluent.producer(server, settings), topic, b"x")
    assert error is not None
    assert error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert topic not in confluent.admin(server).list_topics(timeout=confluent.TIMEOUT_S).topics


def test_a_consumer_does_not_create_the_topic_it_asks_for(server: Server) -> None:
    topic = fresh()
    with confluent.consumer(server) as reader:
        reader.subscribe([topic])
        message = reader.poll(confluent.TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert topic not in confluent.admin(server).list_topics(timeout=confluent.TIMEOUT_S).topics


def test_a_consumer_told_to_create_topics_creates_it(server: Server) -> None:
    topic = fresh()
    with confluent.consumer(server, settings={"allow.auto.create.topics": True}) as reader:
        reader.assign([TopicPartition(topic, 0)])
        confluent.eventually_listed(server, topic)
