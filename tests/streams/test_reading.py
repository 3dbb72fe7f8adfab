"""Reading again: from any position, to the end as it was or on and on, and never a part taken for the whole."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

import penstock
from penstock import Position
from penstock.errors import (
    BrokerUnavailableError,
    ConnectionClosedError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from tests.clients import confluent
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock

TIMEOUT_S = 20.0
MORNING = datetime.datetime(2024, 11, 15, 8, 0, tzinfo=datetime.UTC)


def send_numbers(stream: penstock.Connection, topic: str, count: int, first: int = 0) -> None:
    """Records whose value is their number and whose timestamp is so many minutes after the morning."""
    for number in range(first, first + count):
        stream.send(topic, str(number), timestamp=MORNING + datetime.timedelta(minutes=number), partition=0)
    stream.flush(TIMEOUT_S)


def numbers(reader: penstock.Reader) -> list[int]:
    return [int(record.value or b"") for record in reader]


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        (Position.EARLIEST, 0),
        ({0: 4}, 4),
        (Position.at_pointer(4), 4),
        (Position.at_pointer("10"), 10),
        ("latest", 10),
        (MORNING + datetime.timedelta(minutes=3, seconds=1), 4),
        (Position.at_time(MORNING + datetime.timedelta(minutes=3)), 3),
        (MORNING - datetime.timedelta(days=1), 0),
        (MORNING + datetime.timedelta(days=1), 10),
    ],
)
def test_reading_begins_at_the_position_and_ends_at_the_end(
    stream: penstock.Connection, topic: str, start: Any, first: int
) -> None:
    send_numbers(stream, topic, 10)
    assert numbers(stream.read(topic, start)) == list(range(first, 10))


def test_reading_ends_at_what_was_the_end_when_it_began(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 5)
    reader = stream.read(topic)
    send_numbers(stream, topic, 5, first=5)
    assert numbers(reader) == [0, 1, 2, 3, 4]
    assert numbers(reader) == [], "a reader that has ended stays ended"


def test_reading_takes_no_more_than_the_limit(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 10)
    assert numbers(stream.read(topic, limit=3)) == [0, 1, 2]
    assert numbers(stream.read(topic, limit=0)) == []
    assert numbers(stream.read(topic, limit=30)) == list(range(10))
    with pytest.raises(penstock.ConfigError, match="limit=-1"):
        stream.read(topic, limit=-1)


def test_an_empty_topic_is_read_at_once(stream: penstock.Connection, topic: str) -> None:
    assert list(stream.read(topic)) == []


def test_all_partitions_are_read_and_each_in_order(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=3)
    for number in range(300):
        stream.send(topic, str(number), partition=number % 3)
    stream.flush(TIMEOUT_S)
    records = list(stream.read(topic))
    assert len(records) == 300
    for partition in range(3):
        values = [int(record.value or b"") for record in records if record.partition == partition]
        assert values == list(range(partition, 300, 3))


def test_some_partitions_can_be_read_alone(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=3)
    for number in range(9):
        stream.send(topic, str(number), partition=number % 3)
    stream.flush(TIMEOUT_S)
    assert sorted(numbers(stream.read(topic, partitions=[0, 2]))) == [0, 2, 3, 5, 6, 8]
    assert sorted(numbers(stream.read(topic, {0: 2, 1: 1}))) == [4, 6, 7]
    assert numbers(stream.read(topic, {0: 2, 1: 1}, partitions=[1])) == [4, 7]
    with pytest.raises(penstock.ConfigError, match="start has no offset for partition 2"):
        stream.read(topic, {0: 2}, partitions=[0, 2])
    with pytest.raises(UnknownTopicError, match="has no partition 7: it has 3, numbered from 0 to 2"):
        stream.read(topic, partitions=[7])


def test_an_uneven_topic_is_read_to_the_end_of_its_longest_partition(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=2)
    stream.send(topic, "0", partition=1)
    send_numbers(stream, topic, 20_000)
    assert len(list(stream.read(topic))) == 20_001


def test_following_goes_on_with_what_comes(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 2)
    reader = stream.read(topic, follow=True)
    assert [next(reader).value, next(reader).value] == [b"0", b"1"]
    send_numbers(stream, topic, 2, first=2)
    assert [next(reader).value, next(reader).value] == [b"2", b"3"]
    reader.close()
    assert list(reader) == []


def test_following_from_the_latest_sees_only_what_is_new(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 5)
    with stream.read(topic, "latest", follow=True, limit=1) as reader:
        stream.send(topic, "new").result(TIMEOUT_S)
        assert [record.value for record in reader] == [b"new"]


def test_following_ends_when_nothing_has_come_for_the_timeout(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 3)
    started_s = time.monotonic()
    assert numbers(stream.read(topic, follow=True, timeout_s=0.5)) == [0, 1, 2]
    assert time.monotonic() - started_s >= 0.5


def test_a_reader_that_waits_is_ended_by_closing_it(stream: penstock.Connection, topic: str) -> None:
    reader = stream.read(topic, follow=True)
    ended = threading.Event()

    def follow() -> None:
        for _ in reader:
            pass
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    reader.close()
    assert ended.wait(TIMEOUT_S)
    thread.join()


def test_a_reader_that_is_closed_before_its_end_does_not_pretend_to_have_come_to_it(
    stream: penstock.Connection, topic: str
) -> None:
    send_numbers(stream, topic, 20_000)
    reader = stream.read(topic)
    assert next(reader).value == b"0"
    reader.close()
    with pytest.raises(ConnectionClosedError, match="stopped before its end"):
        list(reader)


def test_closing_the_connection_ends_its_readers(server: Penstock) -> None:
    topic = fresh()
    with penstock.connect(f"kafka://{server.bootstrap}") as stream:
        send_numbers(stream, topic, 5)
        reader, follower = stream.read(topic), stream.read(topic, follow=True)
    with pytest.raises(ConnectionClosedError, match="stopped before its end"):
        next(reader)
    assert list(follower) == []


def test_a_topic_that_is_not_there_is_an_error_and_is_not_made(stream: penstock.Connection) -> None:
    topic = fresh()
    with pytest.raises(UnknownTopicError, match=f"topic '{topic}' could not be looked up"):
        stream.read(topic)
    assert topic not in stream.topics()


def test_a_deleted_offset_is_an_error_that_names_the_range(
    server: Penstock, stream: penstock.Connection, topic: str
) -> None:
    send_numbers(stream, topic, 10)
    confluent.delete_records(server, topic, before=6)
    with pytest.raises(OffsetOutOfRangeError, match="offset 3 was deleted by retention; the log holds 6 to 10"):
        stream.read(topic, {0: 3})
    assert numbers(stream.read(topic)) == [6, 7, 8, 9]


def test_an_offset_that_is_not_written_yet_is_an_error(stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 3)
    with pytest.raises(OffsetOutOfRangeError, match="offset 4 has not been written yet"):
        stream.read(topic, Position.at_pointer(4))


def test_records_that_are_deleted_before_they_are_read_are_not_passed_over_in_silence(
    server: Penstock, stream: penstock.Connection, topic: str
) -> None:
    """Retention overtakes a slow reader: what it has got is handed out, and then comes the error."""
    large = b"x" * 500_000
    for _ in range(20):
        stream.send(topic, large)
    stream.flush(TIMEOUT_S)
    slow = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 600_000}
    with penstock.connect(f"kafka://{server.bootstrap}", librdkafka=slow) as own:
        reader = own.read(topic)
        assert next(reader).offset == 0
        confluent.delete_records(server, topic, before=19)
        with pytest.raises(OffsetOutOfRangeError, match="was deleted by retention; the log holds 19 to 20"):
            list(reader)


def test_the_earliest_record_is_the_one_that_is_earliest_when_reading_begins(
    server: Penstock, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records go away between looking up the first offset and reading it."""
    send_numbers(stream, topic, 10)
    administration = stream.admin()
    stale = administration.earliest(topic, [0])
    confluent.delete_records(server, topic, before=7)
    with monkeypatch.context() as patch:
        patch.setattr(administration, "locate", lambda *_: stale)
        reader = stream.read(topic)
    assert numbers(reader) == [7, 8, 9]


def test_everything_deleted_between_looking_and_reading_is_an_empty_topic(
    server: Penstock, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_numbers(stream, topic, 10)
    administration = stream.admin()
    stale = administration.earliest(topic, [0])
    confluent.delete_records(server, topic, before=10)
    with monkeypatch.context() as patch:
        patch.setattr(administration, "locate", lambda *_: stale)
        reader = stream.read(topic)
    send_numbers(stream, topic, 1, first=10)
    assert numbers(reader) == []


def test_markers_of_transactions_at_the_end_do_not_keep_a_reader_waiting(
    server: Penstock, stream: penstock.Connection, topic: str
) -> None:
    writer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": fresh("txn"), **confluent.QUICK})
    writer.init_transactions(TIMEOUT_S)
    for value, commits in (("kept", True), ("dropped", False)):
        writer.begin_transaction()
        writer.produce(topic, value, partition=0)
        writer.flush(TIMEOUT_S)
        (writer.commit_transaction if commits else writer.abort_transaction)(TIMEOUT_S)
    assert [record.value for record in stream.read(topic)] == [b"kept"]


def test_an_open_transaction_is_not_read(server: Penstock, stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 2)
    writer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": fresh("txn"), **confluent.QUICK})
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(topic, "2", partition=0)
    writer.flush(TIMEOUT_S)
    assert numbers(stream.read(topic)) == [0, 1]
    writer.commit_transaction(TIMEOUT_S)
    assert numbers(stream.read(topic)) == [0, 1, 2]


def test_a_reader_goes_on_where_it_was_when_the_broker_comes_back(tmp_path: Any) -> None:
    with Penstock(tmp_path) as own, penstock.connect(f"kafka://{own.bootstrap}") as stream:
        send_numbers(stream, "orders", 3)
        reader = stream.read("orders", follow=True)
        assert [next(reader).offset for _ in range(3)] == [0, 1, 2]
        own.kill()
        own.start()
        send_numbers(stream, "orders", 2, first=3)
        assert [next(reader).value for _ in range(2)] == [b"3", b"4"]


def test_a_broker_that_falls_silent_before_the_end_is_an_error(tmp_path: Any) -> None:
    slow = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "fetch.message.max.bytes": 600_000}
    with Penstock(tmp_path) as own, penstock.connect(f"kafka://{own.bootstrap}", librdkafka=slow) as stream:
        for _ in range(20):
            stream.send("orders", b"x" * 500_000)
        stream.flush(TIMEOUT_S)
        reader = stream.read("orders", timeout_s=1)
        assert next(reader).offset == 0
        own.kill()
        with pytest.raises(BrokerUnavailableError, match="was not read to its end: nothing came for 1 s"):
            list(reader)


def test_a_start_that_is_a_bare_number_is_refused_as_nobody_knows_what_it_counts(
    stream: penstock.Connection, topic: str
) -> None:
    with pytest.raises(penstock.ConfigError, match=r"5 is not a start: use .* Position\.at_time\(milliseconds\)"):
        stream.read(topic, 5)  # type: ignore[arg-type]


def test_topics_are_listed_created_and_deleted(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=2, config={"retention.ms": "1000"})
    assert topic in stream.topics()
    assert not [name for name in stream.topics() if name.startswith("__")]
    with pytest.raises(TopicExistsError, match="exists already"):
        stream.create_topic(topic)
    stream.delete_topic(topic)
    eventually("the topic is gone", lambda: topic not in stream.topics())
    with pytest.raises(UnknownTopicError, match="could not be deleted: there is no such topic"):
        stream.delete_topic(topic)


@pytest.mark.parametrize(
    ("name", "arguments", "error", "complaint"),
    [
        ("not a topic", {}, InvalidTopicError, "use 1 to 249 letters"),
        ("", {}, InvalidTopicError, "use 1 to 249 letters"),
        ("zero", {"partitions": 0}, penstock.ConfigError, "partitions"),
        ("typo", {"config": {"retention.sm": "1"}}, penstock.ConfigError, "retention.sm"),
        ("value", {"config": {"retention.ms": "soon"}}, penstock.ConfigError, "retention.ms"),
    ],
)
def test_a_topic_that_cannot_be_created_says_why(
    stream: penstock.Connection, name: str, arguments: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        stream.create_topic(name, **arguments)


def test_readers_commit_nothing_and_are_no_group(server: Penstock, stream: penstock.Connection, topic: str) -> None:
    send_numbers(stream, topic, 3)
    assert numbers(stream.read(topic)) == [0, 1, 2]
    listed = confluent.admin(server).list_consumer_groups().result(TIMEOUT_S)
    assert "penstock-reader" not in {group.group_id for group in listed.valid}
    with confluent.consumer(server, "penstock-reader") as member:
        (committed,) = member.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)
        assert committed.offset < 0
