"""Where a partition begins and ends, by offset and by time, and forgetting its beginning."""

from __future__ import annotations

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.clients import confluent
from tests.clients.confluent import TIMEOUT_S, admin, list_offset
from tests.servers import Server


def topic_with_times(server: Server, *timestamps_ms: int) -> str:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server)
    for timestamp_ms in timestamps_ms:
        sender.produce(topic, b"x", partition=0, timestamp=timestamp_ms)
        assert sender.flush(TIMEOUT_S) == 0
    return topic


def test_offsets_are_found_by_each_kind_of_question(server: Server) -> None:
    topic = topic_with_times(server, 1000, 5000, 3000)
    assert list_offset(server, topic, OffsetSpec.earliest()) == 0
    assert list_offset(server, topic, OffsetSpec.latest()) == 3
    assert list_offset(server, topic, OffsetSpec.for_timestamp(1001)) == 1
    assert list_offset(server, topic, OffsetSpec.for_timestamp(5001)) == -1
    assert list_offset(server, topic, OffsetSpec.max_timestamp()) == 1


def test_the_answer_carries_the_time_of_the_record_it_points_at(server: Server) -> None:
    topic = topic_with_times(server, 1000, 5000, 3000)
    place = TopicPartition(topic, 0)
    found = admin(server).list_offsets({place: OffsetSpec.for_timestamp(2000)})[place].result(TIMEOUT_S)
    assert (found.offset, found.timestamp, found.leader_epoch) == (1, 5000, 0)
    found = admin(server).list_offsets({place: OffsetSpec.max_timestamp()})[place].result(TIMEOUT_S)
    assert (found.offset, found.timestamp) == (1, 5000)
    found = admin(server).list_offsets({place: OffsetSpec.latest()})[place].result(TIMEOUT_S)
    assert (found.offset, found.timestamp) == (3, -1)


def test_an_empty_partition_has_no_newest_record(server: Server) -> None:
    topic = confluent.create_topic(server)
    place = TopicPartition(topic, 0)
    for spec in (OffsetSpec.max_timestamp(), OffsetSpec.for_timestamp(0)):
        found = admin(server).list_offsets({place: spec})[place].result(TIMEOUT_S)
        assert (found.offset, found.timestamp) == (-1, -1)


def test_records_in_one_compressed_batch_are_found_one_by_one(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server, {"compression.type": "zstd", "linger.ms": 200})
    for number in range(100):
        sender.produce(topic, b"x" * 100, partition=0, timestamp=1000 + number)
    assert sender.flush(TIMEOUT_S) == 0
    assert list_offset(server, topic, OffsetSpec.for_timestamp(1042)) == 42
    assert list_offset(server, topic, OffsetSpec.max_timestamp()) == 99


def test_deleted_records_move_the_beginning_for_good(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [str(number).encode() for number in range(10)])
    confluent.delete_records(server, topic, 4)
    assert list_offset(server, topic, OffsetSpec.earliest()) == 4
    assert confluent.values_of(confluent.read_to_end(server, topic)) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    # Deleting less than is already gone changes nothing, and is no error.
    place = TopicPartition(topic, 0, 2)
    assert admin(server).delete_records([place])[place].result(TIMEOUT_S).low_watermark == 4


def test_deleting_everything_leaves_the_next_offset_as_it_was(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"a", b"b", b"c"])
    everything = -1
    place = TopicPartition(topic, 0, everything)
    assert admin(server).delete_records([place])[place].result(TIMEOUT_S).low_watermark == 3
    assert confluent.read_to_end(server, topic) == []
    assert confluent.produce(server, topic, [b"d"]) == [3]


def test_records_that_do_not_exist_cannot_be_deleted(server: Server) -> None:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [b"a"])
    place = TopicPartition(topic, 0, 2)
    assert confluent.error_of(admin(server).delete_records([place])[place]) == KafkaError.OFFSET_OUT_OF_RANGE


def test_records_of_a_compacted_topic_cannot_be_deleted(server: Server) -> None:
    topic = confluent.create_topic(server, settings={"cleanup.policy": "compact"})
    sender = confluent.producer(server)
    assert confluent.delivery_error(sender, topic, b"v", key=b"k") is None
    place = TopicPartition(topic, 0, 1)
    assert confluent.error_of(admin(server).delete_records([place])[place]) == KafkaError.POLICY_VIOLATION
