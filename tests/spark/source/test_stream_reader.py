"""The streaming reader, asked as Spark asks it: positions, limits, new partitions, expired records, replaced topics."""

from __future__ import annotations

import datetime
import json

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

import penstock
from penstock import Connection
from penstock.errors import (
    BrokerUnavailableError,
    CheckpointMismatchError,
    ConfigError,
    OffsetOutOfRangeError,
    RecordsExpiredError,
    TopicReplacedError,
    UnknownTopicError,
)
from penstock.spark.source.stream_reader import PenstockStreamReader
from tests.spark.source.reading import (
    all_batches,
    delete_before,
    next_batch,
    numbers_of,
    rows_between,
    send_numbers,
    stream_reader,
)

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def look_again(reader: PenstockStreamReader) -> None:
    """Notice new partitions now, and not only when the time for it has come."""
    reader._described = None


def test_all_is_read_from_the_beginning_and_then_what_comes(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 3)
    send_numbers(connection, topic, range(100), 3)
    reader = stream_reader(log_url, topic)
    rows, end = next_batch(reader, reader.initialOffset())
    assert sorted(numbers_of(rows)) == list(range(100))
    assert [row["pointer"] for row in rows if row["partition"] == 1] == list(range(33))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    send_numbers(connection, topic, range(100, 104), 3)
    rows, end = next_batch(reader, end)
    assert sorted(numbers_of(rows)) == [100, 101, 102, 103]
    assert reader.reportLatestOffset() == {topic: {"0": 35, "1": 35, "2": 34}}
    reader.stop()


def test_a_batch_of_limited_records_takes_of_each_partition_in_proportion_to_what_waits(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 2)
    for number in range(1000):
        connection.send(topic, str(number), partition=0 if number < 990 else 1)
    connection.flush()
    reader = stream_reader(log_url, topic, maxRecordsPerBatch="100")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    batches, end = all_batches(reader, reader.initialOffset())
    assert [len(rows) for rows in batches] == [100] * 10
    assert [sum(row["partition"] for row in rows) for rows in batches] == [1] * 10
    assert sorted(number for rows in batches for number in numbers_of(rows)) == list(range(1000))
    assert end[topic] == {"0": 990, "1": 10}
    rows, _ = next_batch(reader, reader.initialOffset(), ReadAllAvailable())
    assert len(rows) == 1000
    reader.stop()


@pytest.mark.parametrize("limit", [{"maxRecordsPerBatch": "100"}, {"maxBytesPerBatch": "2000"}], ids=lambda it: min(it))
def test_unequal_partitions_are_read_in_step_by_the_timestamps_of_their_records(
    connection: Connection, log_url: str, topic: str, limit: dict[str, str]
) -> None:
    """One partition is busy in the first hour, one in the second, one has a record now and then, and one has none."""
    connection.create_topic(topic, 4)
    minutes = [(0, each / 10) for each in range(600)] + [(1, 60 + each / 10) for each in range(600)]
    minutes += [(0, each) for each in range(60, 120)] + [(1, each) for each in range(60)] + [(2, 30), (2, 90)]
    for partition, minute in sorted(minutes, key=lambda it: it[1]):
        at = LONG_AGO + datetime.timedelta(minutes=minute)
        connection.send(topic, str(minute), partition=partition, timestamp=at)
    connection.flush()
    reader = stream_reader(log_url, topic, **limit)
    batches, _ = all_batches(reader, reader.initialOffset())
    assert sum(map(len, batches)) == len(minutes)
    assert len(batches) > 5
    reached = [max(row["timestamp"] for row in rows) for rows in batches]
    for before, rows in zip(reached, batches[1:], strict=False):
        assert min(row["timestamp"] for row in rows) >= before
    reader.stop()


def test_a_batch_of_limited_bytes_is_about_so_large(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 2)
    for number in range(2000):
        connection.send(topic, b"%0100d" % number, partition=number % 2)
    connection.flush()
    reader = stream_reader(log_url, topic, maxBytesPerBatch="22000")
    assert reader.getDefaultReadLimit() == ReadMaxBytes(22000)
    batches, _ = all_batches(reader, reader.initialOffset())
    assert sorted(number for rows in batches for number in numbers_of(rows)) == list(range(2000))
    sizes = [len(rows) for rows in batches]
    assert all(150 <= size <= 250 for size in sizes[:-1]), sizes
    reader.stop()


def test_a_record_larger_than_the_limit_in_bytes_is_a_batch(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    for number in range(3):
        connection.send(topic, b"%04000d" % number).result(10)
    reader = stream_reader(log_url, topic, maxBytesPerBatch="100")
    batches, _ = all_batches(reader, reader.initialOffset())
    assert [numbers_of(rows) for rows in batches] == [[0], [1], [2]]
    reader.stop()


def test_both_limits_hold(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(500))
    reader = stream_reader(log_url, topic, maxBytesPerBatch="1000000", maxRecordsPerBatch="70")
    batches, _ = all_batches(reader, reader.initialOffset())
    assert max(len(rows) for rows in batches) == 70
    reader.stop()


def test_a_first_batch_that_is_tried_again_is_the_same_batch(connection: Connection, log_url: str, topic: str) -> None:
    """Spark forgets where a first batch began, and asks again. Those that came meanwhile are not lost or repeated."""
    connection.create_topic(topic, 2)
    send_numbers(connection, topic, range(10), 2)
    reader = stream_reader(log_url, topic, startingPosition="latest")
    initial = reader.initialOffset()
    first = reader.latestOffset(initial, ReadAllAvailable())
    assert rows_between(reader, initial, first) == []
    send_numbers(connection, topic, range(10, 16), 2)
    rows, end = next_batch(reader, first)
    assert sorted(numbers_of(rows)) == list(range(10, 16))
    reader.stop()

    again = stream_reader(log_url, topic, startingPosition="latest")
    later = again.initialOffset()
    assert later[topic] == {"0": 8, "1": 8}
    assert rows_between(again, later, first) == [], "the first batch, whose end is known, is still empty"
    rows, _ = next_batch(again, first)
    assert sorted(numbers_of(rows)) == list(range(10, 16))
    again.stop()

    eager = stream_reader(log_url, topic, startingPosition="latest")
    begun = eager.initialOffset()
    send_numbers(connection, topic, range(16, 20), 2)
    rows, end = next_batch(eager, begun)
    assert sorted(numbers_of(rows)) == [16, 17, 18, 19]
    send_numbers(connection, topic, range(20, 22), 2)
    assert rows_between(eager, eager.initialOffset(), end) == rows
    eager.stop()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3]),
        ("latest", []),
        ("2020-01-01T00:00:02Z", [2, 3]),
        ("2030-01-01T00:00Z", []),
        ('{"0": 3}', [3]),
        ('{"0": 4}', []),
    ],
)
def test_a_query_begins_where_it_was_told_to(
    connection: Connection, log_url: str, topic: str, start: str, expected: list[int]
) -> None:
    connection.create_topic(topic, 1)
    for number in range(4):
        connection.send(topic, str(number), timestamp=LONG_AGO + datetime.timedelta(seconds=number))
    connection.flush()
    reader = stream_reader(log_url, topic, startingPosition=start)
    batches, _ = all_batches(reader, reader.initialOffset())
    assert [number for rows in batches for number in numbers_of(rows)] == expected
    reader.stop()


@pytest.mark.parametrize(
    ("start", "error", "says"),
    [
        ('{"0": 0}', ConfigError, "has no pointer for partition 1"),
        ('{"0": 0, "1": 0, "2": 0}', ConfigError, "one for partition 2"),
        ('{"0": 0, "1": 9}', OffsetOutOfRangeError, "-1: offset 9 has not been written yet"),
    ],
)
def test_pointers_that_do_not_fit_the_topic_are_refused(
    connection: Connection, log_url: str, topic: str, start: str, error: type[Exception], says: str
) -> None:
    connection.create_topic(topic, 2)
    reader = stream_reader(log_url, topic, startingPosition=start)
    with pytest.raises(error, match=says):
        reader.initialOffset()
    reader.stop()


def test_new_partitions_are_read_from_their_first_record(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(5))
    reader = stream_reader(log_url, topic, startingPosition="latest", maxRecordsPerBatch="4")
    first = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    connection.admin().add_partitions(topic, 3)
    with penstock.connect(log_url) as newcomer:  # who knows of the new partitions at once
        send_numbers(newcomer, topic, range(10, 22), 3)
    look_again(reader)
    batches, end = all_batches(reader, first)
    assert sorted(number for rows in batches for number in numbers_of(rows)) == list(range(10, 22))
    assert [len(rows) for rows in batches] == [4, 4, 4]
    assert end[topic] == {"0": 9, "1": 4, "2": 4}
    reader.stop()


def test_a_run_that_takes_what_is_there_ends_there(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 2)
    send_numbers(connection, topic, range(10), 2)
    reader = stream_reader(log_url, topic, maxRecordsPerBatch="3")
    reader.prepareForTriggerAvailableNow()
    send_numbers(connection, topic, range(10, 20), 2)
    connection.admin().add_partitions(topic, 3)
    with penstock.connect(log_url) as newcomer:
        newcomer.send(topic, "99", partition=2).result(10)
    look_again(reader)
    batches, end = all_batches(reader, reader.initialOffset())
    assert sorted(number for rows in batches for number in numbers_of(rows)) == list(range(10))
    assert [len(rows) for rows in batches] == [3, 3, 3, 1]
    reader.stop()

    later = stream_reader(log_url, topic)
    later.prepareForTriggerAvailableNow()
    batches, _ = all_batches(later, end)
    assert sorted(number for rows in batches for number in numbers_of(rows)) == [*range(10, 20), 99]
    later.stop()


def test_expired_records_end_the_query_with_what_was_wanted_and_what_is_there(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 2)
    send_numbers(connection, topic, range(20), 2)
    reader = stream_reader(log_url, topic, maxRecordsPerBatch="4")
    _, end = next_batch(reader, reader.initialOffset())
    delete_before(connection, topic, {1: 7})
    with pytest.raises(RecordsExpiredError, match=r"partition 1: the next record to read has pointer 2, .* has 7"):
        reader.latestOffset(end, ReadMaxRows(4))
    reader.stop()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("earliest", [15, 17, 19]), ("latest", []), ("2020-01-01T00:00:17Z", [17, 19])],
)
def test_where_to_go_on_when_records_are_gone_can_be_said(
    connection: Connection, log_url: str, topic: str, policy: str, expected: list[int]
) -> None:
    connection.create_topic(topic, 2)
    for number in range(20):
        when = LONG_AGO + datetime.timedelta(seconds=number)
        connection.send(topic, str(number), partition=number % 2, timestamp=when)
    connection.flush()
    reader = stream_reader(log_url, topic, maxRecordsPerBatch="4", onExpired=policy)
    rows, end = next_batch(reader, reader.initialOffset())
    assert sorted(numbers_of(rows)) == [0, 1, 2, 3]
    delete_before(connection, topic, {1: 7})
    batches, last = all_batches(reader, end)
    assert sorted(number for rows in batches for number in numbers_of(rows)) == sorted([*range(4, 20, 2), *expected])
    assert last[topic] == {"0": 10, "1": 10}
    reader.stop()


def test_a_topic_that_was_deleted_is_an_error(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(3))
    reader = stream_reader(log_url, topic)
    _, end = next_batch(reader, reader.initialOffset())
    connection.delete_topic(topic)
    with pytest.raises(TopicReplacedError, match="was deleted"):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()


def test_a_topic_that_was_created_again_is_an_error_however_much_is_in_it(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(3))
    reader = stream_reader(log_url, topic)
    _, end = next_batch(reader, reader.initialOffset())
    connection.delete_topic(topic)
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(100))
    with pytest.raises(TopicReplacedError, match="not the topic that this query has read so far"):
        reader.latestOffset(end, ReadAllAvailable())
    nameless = {name: value for name, value in end.items() if name != "@id"}
    assert len(next_batch(reader, nameless)[0]) == 97, "who is not told that it is another topic cannot know"
    nameless[topic] = {"0": 200}
    with pytest.raises(TopicReplacedError, match="read up to 200, but the partition now ends at 100"):
        reader.latestOffset(nameless, ReadAllAvailable())
    reader.stop()


def test_a_checkpoint_of_another_topic_is_refused(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    reader = stream_reader(log_url, topic)
    with pytest.raises(CheckpointMismatchError, match="belongs to 'm'"):
        reader.latestOffset({"m": {"0": 1}}, ReadAllAvailable())
    reader.stop()


def test_a_topic_that_is_not_there_is_named(connection: Connection, log_url: str) -> None:
    reader = stream_reader(log_url, "nowhere")
    with pytest.raises(UnknownTopicError, match="nowhere"):
        reader.initialOffset()
    reader.stop()


def test_a_url_that_nobody_answers_is_an_error_within_its_time() -> None:
    reader = stream_reader("kafka://127.0.0.1:1", "orders", **{"client.connect_timeout_s": "2"})
    with pytest.raises(BrokerUnavailableError, match=r"nothing answers at 127\.0\.0\.1:1"):
        reader.initialOffset()
    reader.stop()


def test_progress_is_plain_json(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(3))
    reader = stream_reader(log_url, topic)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert json.loads(json.dumps(end)) == end
    assert end[topic] == {"0": 3}
    assert end["@from"] == {"0": 0}
    reader.stop()
