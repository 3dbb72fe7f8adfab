"""confluent-kafka (librdkafka) choosing where it reads: by offset, by time, from either end."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, TopicPartition

from tests.clients import confluent
from tests.clients.names import fresh
from tests.servers import Server


def filled_topic(server: Server, count: int = 10) -> str:
    topic = confluent.create_topic(server)
    confluent.produce(server, topic, [str(number).encode() for number in range(count)])
    return topic


def next_values(reader: Consumer, count: int) -> list[bytes | None]:
    return confluent.values_of(confluent.poll_until(reader, count))


def test_seek_moves_back_and_forth(server: Server) -> None:
    topic = filled_topic(server)
    with confluent.consumer(server) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert next_values(reader, 2) == [b"0", b"1"]
        reader.seek(TopicPartition(topic, 0, 8))
        assert next_values(reader, 2) == [b"8", b"9"]
        reader.seek(TopicPartition(topic, 0, 3))
        assert next_values(reader, 1) == [b"3"]
        assert reader.position([TopicPartition(topic, 0)])[0].offset == 4


def test_paused_partitions_wait_until_they_are_resumed(server: Server) -> None:
    topic = confluent.create_topic(server, partitions=2)
    with confluent.consumer(server) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING), TopicPartition(topic, 1, OFFSET_BEGINNING)])
        reader.pause([TopicPartition(topic, 0)])
        confluent.produce(server, topic, [b"held back"], partition=0)
        confluent.produce(server, topic, [b"comes through"], partition=1)
        assert next_values(reader, 1) == [b"comes through"]
        reader.resume([TopicPartition(topic, 0)])
        assert next_values(reader, 1) == [b"held back"]


def test_reading_from_the_end_sees_only_what_comes_later(server: Server) -> None:
    topic = filled_topic(server)
    with confluent.consumer(server, settings={"enable.partition.eof": True}) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_END)])
        end = reader.poll(confluent.TIMEOUT_S)
        assert end is not None
        error = end.error()
        assert error is not None
        assert (error.code(), end.offset()) == (KafkaError._PARTITION_EOF, 10)
        confluent.produce(server, topic, [b"new"])
        assert next_values(reader, 1) == [b"new"]


def test_a_reader_waiting_at_the_end_gets_a_record_when_it_comes(server: Server) -> None:
    topic = confluent.create_topic(server)
    with confluent.consumer(server, settings={"fetch.wait.max.ms": 5000}) as reader:
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for value in (b"one", b"two", b"three"):
            confluent.produce(server, topic, [value])
            # Far less than the long poll: the broker must answer when the record comes, not when the poll is over.
            assert confluent.values_of(confluent.poll_until(reader, 1, timeout_s=3)) == [value]


def test_offsets_for_times_finds_the_first_record_at_or_after_a_time(server: Server) -> None:
    topic = confluent.create_topic(server)
    sender = confluent.producer(server)
    # Not in order of time: the answer is the first offset whose record is late enough, not the earliest such record.
    for timestamp_ms in (1000, 3000, 2000, 4000):
        sender.produce(topic, b"x", partition=0, timestamp=timestamp_ms)
    assert sender.flush(confluent.TIMEOUT_S) == 0
    found: dict[int, int] = {}
    with confluent.consumer(server) as reader:
        for time_ms in (0, 1000, 1001, 2000, 3001, 4000, 4001):
            asked = [TopicPartition(topic, 0, time_ms)]
            found[time_ms] = reader.offsets_for_times(asked, timeout=confluent.TIMEOUT_S)[0].offset
    assert found == {0: 0, 1000: 0, 1001: 1, 2000: 1, 3001: 3, 4000: 3, 4001: OFFSET_END}


def test_watermarks_are_the_first_and_the_next_offset(server: Server) -> None:
    topic = confluent.create_topic(server)
    with confluent.consumer(server) as reader:
        place = TopicPartition(topic, 0)
        assert reader.get_watermark_offsets(place, timeout=confluent.TIMEOUT_S) == (0, 0)
        confluent.produce(server, topic, [b"a", b"b", b"c"])
        assert reader.get_watermark_offsets(place, timeout=confluent.TIMEOUT_S) == (0, 3)
        confluent.delete_records(server, topic, 2)
        assert reader.get_watermark_offsets(place, timeout=confluent.TIMEOUT_S) == (2, 3)


@pytest.mark.parametrize("asked", [0, 999], ids=["deleted", "not yet written"])
@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_an_offset_out_of_range_follows_the_reset_policy(server: Server, reset: str, asked: int) -> None:
    topic = filled_topic(server)
    confluent.delete_records(server, topic, 5)
    settings = {"auto.offset.reset": reset, "enable.partition.eof": True}
    with confluent.consumer(server, settings=settings) as reader:
        reader.assign([TopicPartition(topic, 0, asked)])
        message = reader.poll(confluent.TIMEOUT_S)
        assert message is not None
        error = message.error()
        if reset == "earliest":
            assert (error, message.offset(), message.value()) == (None, 5, b"5")
        else:
            assert error is not None
            expected = KafkaError._PARTITION_EOF if reset == "latest" else KafkaError._AUTO_OFFSET_RESET
            assert error.code() == expected
            if reset == "latest":
                assert message.offset() == 10


@pytest.mark.parametrize(("reset", "first"), [("earliest", b"0"), ("latest", b"new")])
def test_a_group_without_offsets_starts_where_its_reset_policy_says(server: Server, reset: str, first: bytes) -> None:
    topic = filled_topic(server)
    settings = {"auto.offset.reset": reset, "enable.partition.eof": True}
    with confluent.consumer(server, fresh("group"), settings) as reader:
        reader.subscribe([topic])
        if reset == "latest":
            end = reader.poll(confluent.TIMEOUT_S)
            assert end is not None
            assert end.offset() == 10
            confluent.produce(server, topic, [b"new"])
        assert next_values(reader, 1) == [first]


def test_small_fetches_still_return_whole_records(server: Server) -> None:
    topic = confluent.create_topic(server)
    values = [bytes([number]) * 50_000 for number in range(10)]
    confluent.produce(server, topic, values)
    tiny = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000, "max.partition.fetch.bytes": 1000}
    assert confluent.values_of(confluent.read_to_end(server, topic, settings=tiny)) == values
