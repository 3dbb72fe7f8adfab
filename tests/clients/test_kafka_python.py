"""kafka-python: a client in pure Python, with an admin client of its own."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetSpec, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    InvalidConfigurationError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Server

TIMEOUT_S: Final = 20.0
PATIENT_MS: Final = 10_000
"""For polling: kafka-python 3.0 loses its assignment when a poll runs out of time in the middle of joining."""


@pytest.fixture
def admin(server: Server) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=server.bootstrap)) as client:
        yield client


@pytest.fixture
def producer(server: Server) -> Iterator[Callable[..., Any]]:
    """Makes producers, and closes them in the end."""
    yield from _made(lambda **settings: KafkaProducer(bootstrap_servers=server.bootstrap, **settings))


@pytest.fixture
def consumer(server: Server) -> Iterator[Callable[..., Any]]:
    """Makes consumers, and closes them in the end."""
    quick = {
        "bootstrap_servers": server.bootstrap,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
        "fetch_max_wait_ms": 100,
    }
    yield from _made(lambda *topics, **settings: KafkaConsumer(*topics, **{**quick, **settings}))


def _made(make: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    made: list[Any] = []

    def remember(*arguments: Any, **settings: Any) -> Any:
        made.append(make(*arguments, **settings))
        return made[-1]

    yield remember
    for client in made:
        client.close()


def new_topic(admin: Any, partitions: int = 1, **settings: str) -> str:
    name = fresh()
    configs = {setting.replace("_", "."): value for setting, value in settings.items()}
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    admin.wait_for_topics([name])
    return name


def read(client: Any, count: int) -> list[Any]:
    """The next records, in the order they came."""
    records: list[Any] = []

    def enough() -> bool:
        for batch in client.poll(timeout_ms=PATIENT_MS).values():
            records.extend(batch)
        return len(records) >= count

    eventually(f"{count} records", enough, TIMEOUT_S)
    return records


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def test_a_record_comes_back_as_it_was_sent(admin: Any, producer: Any, consumer: Any) -> None:
    topic = new_topic(admin, partitions=2)
    headers = [("trace", b"\x00\xff"), ("trace", b"again")]
    sent = producer(acks="all").send(topic, b"value", b"key", headers, partition=1, timestamp_ms=1_700_000_000_000)
    answer = sent.get(TIMEOUT_S)
    assert (answer.partition, answer.offset, answer.timestamp) == (1, 0, 1_700_000_000_000)
    (record,) = read(consumer(topic), 1)
    assert (record.key, record.value, record.headers) == (b"key", b"value", headers)
    assert (record.partition, record.offset, record.timestamp) == (1, 0, 1_700_000_000_000)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_round_trips(admin: Any, producer: Any, consumer: Any, codec: str | None) -> None:
    topic = new_topic(admin)
    sender = producer(compression_type=codec, linger_ms=20)
    sent = [str(number).encode() * 50 for number in range(200)]
    for value in sent:
        sender.send(topic, value)
    sender.flush(TIMEOUT_S)
    assert values(read(consumer(topic), 200)) == sent


@pytest.mark.parametrize(("acks", "idempotent"), [(0, False), (1, False), ("all", False), ("all", True)])
def test_every_level_of_acknowledgement(
    admin: Any, producer: Any, consumer: Any, acks: int | str, idempotent: bool
) -> None:
    topic = new_topic(admin)
    sender = producer(acks=acks, enable_idempotence=idempotent)
    sender.send(topic, b"x").get(TIMEOUT_S)
    assert values(read(consumer(topic), 1)) == [b"x"]


class PolledMember:
    """A consumer polled by a thread of its own: joining holds up whoever polls until all members have joined."""

    def __init__(self, client: Any) -> None:
        self.partitions: set[int] = set()
        self._client = client
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def _poll(self) -> None:
        while not self._leaving.is_set():
            self._client.poll(timeout_ms=PATIENT_MS)
            self.partitions = {place.partition for place in self._client.assignment()}
        self._client.close()

    def has_left(self) -> bool:
        """Ask it to leave; it does after its next record."""
        self._leaving.set()
        return not self._thread.is_alive()


def test_two_members_share_a_group_and_the_last_one_takes_all(admin: Any, producer: Any, consumer: Any) -> None:
    topic, group, sender = new_topic(admin, partitions=4), fresh("group"), producer()
    first, second = members = [PolledMember(consumer(topic, group_id=group)) for _ in range(2)]

    def when_records_come(condition: Callable[[], bool]) -> bool:
        for partition in range(4):
            sender.send(topic, b"wakes whoever reads it", partition=partition)
        sender.flush(TIMEOUT_S)
        return condition()

    def balanced() -> bool:
        return len(first.partitions) == len(second.partitions) == 2

    try:
        eventually("two each", lambda: when_records_come(balanced))
        assert first.partitions | second.partitions == {0, 1, 2, 3}
        eventually("the second has left", lambda: when_records_come(second.has_left))
        eventually("the first has all", lambda: when_records_come(lambda: first.partitions == {0, 1, 2, 3}))
    finally:
        for member in members:
            eventually("it has left", functools.partial(when_records_come, member.has_left))


def test_a_group_resumes_behind_what_it_committed(admin: Any, producer: Any, consumer: Any) -> None:
    topic, group = new_topic(admin), fresh("group")
    sender = producer()
    for number in range(5):
        sender.send(topic, str(number).encode())
    sender.flush(TIMEOUT_S)
    place = TopicPartition(topic, 0)
    first = consumer(topic, group_id=group)
    assert len(read(first, 5)) == 5
    first.commit({place: OffsetAndMetadata(2, "by hand", -1)})
    assert first.committed(place) == 2
    first.close()
    assert values(read(consumer(topic, group_id=group), 3)) == [b"2", b"3", b"4"]


def test_places_are_found_by_time_and_at_the_ends(admin: Any, producer: Any, consumer: Any) -> None:
    topic = new_topic(admin)
    sender = producer()
    for timestamp_ms in (1000, 2000, 3000):
        sender.send(topic, b"x", timestamp_ms=timestamp_ms)
    sender.flush(TIMEOUT_S)
    place = TopicPartition(topic, 0)
    reader = consumer()
    assert reader.beginning_offsets([place]) == {place: 0}
    assert reader.end_offsets([place]) == {place: 3}
    found = reader.offsets_for_times({place: 1500})[place]
    assert (found.offset, found.timestamp) == (1, 2000)
    assert reader.offsets_for_times({place: 9000})[place] is None
    reader.assign([place])
    reader.seek(place, 2)
    assert [record.offset for record in read(reader, 1)] == [2]
    reader.seek_to_beginning(place)
    assert [record.offset for record in read(reader, 3)] == [0, 1, 2]
    assert admin.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 3
    assert admin.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP})[place].offset == 2


def test_an_offset_that_was_deleted_is_told_to_those_who_want_to_know(admin: Any, producer: Any, consumer: Any) -> None:
    topic = new_topic(admin)
    sender = producer()
    for _ in range(3):
        sender.send(topic, b"x")
    sender.flush(TIMEOUT_S)
    place = TopicPartition(topic, 0)
    assert admin.delete_records({place: 2})[place]["low_watermark"] == 2
    reader = consumer(auto_offset_reset="none")
    reader.assign([place])
    reader.seek(place, 0)
    with pytest.raises(OffsetOutOfRangeError):
        read(reader, 1)


def test_a_record_that_is_too_large_is_refused(admin: Any, producer: Any) -> None:
    topic = new_topic(admin, max_message_bytes="1000")
    with pytest.raises(MessageSizeTooLargeError):
        producer().send(topic, b"x" * 5000).get(TIMEOUT_S)


def test_topics_are_created_described_grown_and_deleted(admin: Any) -> None:
    topic = new_topic(admin, partitions=2, retention_ms="3600000")
    (described,) = admin.describe_topics([topic])
    assert [part["partition_index"] for part in described["partitions"]] == [0, 1]
    assert described["is_internal"] is False
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    own = admin.describe_configs([resource])["topic"][topic]
    assert {name: entry["value"] for name, entry in own.items()} == {"retention.ms": "3600000"}
    admin.create_partitions({topic: 3})
    eventually("three partitions", lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3)
    assert topic in admin.list_topics()
    admin.delete_topics([topic])
    eventually("it is gone", lambda: topic not in admin.list_topics())


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"replication_factor": 3}, InvalidReplicationFactorError),
        ({"configs": {"no.such.setting": "1"}}, InvalidConfigurationError),
    ],
)
def test_a_topic_that_cannot_be_is_refused(admin: Any, change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        admin.create_topics({fresh(): {"num_partitions": 1, "replication_factor": 1, **change}})


def test_topics_of_a_wrong_name_are_refused(admin: Any) -> None:
    topic = new_topic(admin)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([topic])
    with pytest.raises(InvalidTopicError):
        admin.create_topics(["not a name"])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([fresh()])


def test_a_topic_can_be_placed_by_hand(admin: Any) -> None:
    broker = admin.describe_cluster()["brokers"][0]["broker_id"]
    name = fresh()
    admin.create_topics({name: {"assignments": {0: [broker], 1: [broker]}}})
    admin.wait_for_topics([name])
    assert len(admin.describe_topics([name])[0]["partitions"]) == 2


def test_groups_are_listed_described_and_deleted(admin: Any, producer: Any, consumer: Any) -> None:
    topic, group = new_topic(admin), fresh("group")
    producer().send(topic, b"x").get(TIMEOUT_S)
    member = consumer(topic, group_id=group, client_id="the-reader")
    assert len(read(member, 1)) == 1
    member.commit()
    assert group in {each["group_id"] for each in admin.list_groups()}
    described = admin.describe_groups([group])[group]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    (only,) = described["members"]
    assert (only["client_id"], only["client_host"]) == ("the-reader", "/127.0.0.1")
    assert only["member_assignment"]["assigned_partitions"] == [{"topic": topic, "partitions": [0]}]
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    member.close()
    assert admin.list_group_offsets([group])[group][TopicPartition(topic, 0)].offset == 1
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
    assert admin.list_group_offsets([group])[group][TopicPartition(topic, 0)].offset == 0
    admin.delete_group_offsets(group, [TopicPartition(topic, 0)])
    assert admin.list_group_offsets([group])[group] == {}
    assert admin.delete_groups([group]) == {group: "OK"}
    assert admin.delete_groups([group]) == {group: "GroupIdNotFoundError"}


def test_the_log_folder_tells_how_large_a_partition_is(server: Server, admin: Any, producer: Any) -> None:
    topic = new_topic(admin)
    producer().send(topic, b"x" * 1000).get(TIMEOUT_S)
    (broker,) = admin.describe_log_dirs()
    (folder,) = broker["log_dirs"]
    (size,) = (
        part["partition_size"] for each in folder["topics"] if each["name"] == topic for part in each["partitions"]
    )
    assert 1000 < size < 1200
    assert folder["total_bytes"] > folder["usable_bytes"] > 0


def test_a_transaction_is_seen_when_it_is_committed(admin: Any, producer: Any, consumer: Any) -> None:
    topic, source, group = new_topic(admin), new_topic(admin), fresh("group")
    producer().send(source, b"input").get(TIMEOUT_S)
    reader = consumer(source, group_id=group)
    assert len(read(reader, 1)) == 1
    sender = producer(transactional_id=fresh("txn"))
    sender.init_transactions()
    sender.begin_transaction()
    sender.send(topic, b"aborted")
    sender.flush(TIMEOUT_S)
    sender.abort_transaction()
    sender.begin_transaction()
    sender.send(topic, b"committed")
    positions = {TopicPartition(source, 0): OffsetAndMetadata(1, "", -1)}
    sender.send_offsets_to_transaction(positions, reader.group_metadata())
    sender.commit_transaction()
    assert values(read(consumer(topic, isolation_level="read_committed"), 1)) == [b"committed"]
    assert values(read(consumer(topic), 2)) == [b"aborted", b"committed"]
    assert reader.committed(TopicPartition(source, 0)) == 1


def test_transactions_are_listed_and_described(admin: Any, producer: Any) -> None:
    topic, name = new_topic(admin), fresh("txn")
    sender = producer(transactional_id=name)
    sender.init_transactions()
    sender.begin_transaction()
    sender.send(topic, b"open").get(TIMEOUT_S)
    listed = {row.transactional_id: row.state.value for rows in admin.list_transactions().values() for row in rows}
    assert listed[name] == "Ongoing"
    described = admin.describe_transactions([name])[name]
    assert described.state.value == "Ongoing"
    place = TopicPartition(topic, 0)
    latest = {place: OffsetSpec.LATEST}
    committed = admin.list_partition_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
    assert (committed[place].offset, admin.list_partition_offsets(latest)[place].offset) == (0, 1)
    sender.abort_transaction()


def test_a_new_producer_of_the_same_name_fences_the_old_one(admin: Any, producer: Any) -> None:
    topic, name = new_topic(admin), fresh("txn")
    old, new = producer(transactional_id=name), producer(transactional_id=name)
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"from the zombie").get(TIMEOUT_S)
    new.init_transactions()
    with pytest.raises(ProducerFencedError):
        old.commit_transaction()
