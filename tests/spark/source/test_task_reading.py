"""What tasks read: from files and through the client the same records, exactly those of the range."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import Connection
from penstock.errors import BrokerUnavailableError, RecordsExpiredError, TopicReplacedError
from penstock.log.disk import Disk
from penstock.log.statefile import write_state
from penstock.spark.source.origin import CLUSTER_FILE, LogFolder, Origin, Range, TopicSelection
from penstock.spark.source.task_reading import read_range
from penstock.spark.source.topic_view import open_topics
from penstock.spark.values.columns import RECORD
from tests.clients.raw_headers import LATIN, send_raw
from tests.log import engine
from tests.seeds import seed_of
from tests.spark.source.reading import delete_before, rows_of, send_numbers

Rows = list[dict[str, Any]]


def origins(url: str, topic: str) -> tuple[Origin, Origin]:
    """Where the records are: in files here, and with a broker somewhere."""
    view = open_topics(url, TopicSelection((topic,)), {})
    try:
        files = view.origin()
    finally:
        view.close()
    assert files.folder is not None
    assert files.folder.is_here()
    return files, Origin(files.url)


def read(origin: Origin, topic: str, start: int, end: int) -> Rows:
    return rows_of(list(read_range(origin, Range(topic, 0, start, end), RECORD.names)))


def read_both_ways(url: str, topic: str, start: int, end: int) -> Rows:
    files, client = origins(url, topic)
    from_files = read(files, topic, start, end)
    assert from_files == read(client, topic, start, end)
    return from_files


def test_names_of_headers_that_are_no_utf8_are_the_same_both_ways(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 1)
    send_raw(connection.bootstrap, topic, [(b"v", [(b"a", None), (LATIN, b"x")])] * 20)
    rows = read_both_ways(log_url, topic, 0, 20)
    assert [row["headers"] for row in rows] == [
        [{"key": "a", "value": None}, {"key": r"gr\xf6\xdfe", "value": b"x"}]
    ] * 20


def test_every_column_is_what_was_sent(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = [
        (b"k", b"v", [], 1_700_000_000_000),
        (None, b"v", [("a", b"1"), ("a", b"2")], 1_700_000_000_001),
        (b"k", None, [("a", None), ("b", b"")], 1),
        (None, None, [], 1_600_000_000_000),
        (b"", b"", [("ü", "ü".encode())], 1_234_567_890_123),
        (b"\x00" * 40, bytes(range(256)) * 20, [], 1_700_000_000_002),
    ]
    for key, value, headers, timestamp in sent:
        connection.send(topic, value, key, headers=headers, timestamp=timestamp)
    connection.flush()
    rows = read_both_ways(log_url, topic, 0, len(sent))
    assert [(row["key"], row["value"], row["headers"], round(row["timestamp"].timestamp() * 1000)) for row in rows] == [
        (key, value, [{"key": name, "value": its} for name, its in headers] or None, timestamp)
        for key, value, headers, timestamp in sent
    ]
    assert {(row["topic"], row["partition"], row["timestamp_type"]) for row in rows} == {(topic, 0, "create")}
    assert [row["pointer"] for row in rows] == list(range(len(sent)))


def test_times_of_the_log_are_told_from_those_of_producers(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    connection.send(topic, "1", timestamp=1_000).result(10)
    connection.admin().change_config(topic, {"message.timestamp.type": "LogAppendTime"})
    connection.send(topic, "2", timestamp=1_000).result(10)
    connection.admin().change_config(topic, {"message.timestamp.type": "CreateTime"})
    connection.send(topic, "3", timestamp=3_000).result(10)
    rows = read_both_ways(log_url, topic, 0, 3)
    assert [row["timestamp_type"] for row in rows] == ["create", "append", "create"]
    assert [row["timestamp"].timestamp() for row in rows][::2] == [1.0, 3.0]
    assert rows[1]["timestamp"].timestamp() > 1_700_000_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(connection: Connection, log_url: str, topic: str, codec: str) -> None:
    connection.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": connection.bootstrap, "compression.type": codec, "linger.ms": 20})
    for number in range(500):
        producer.produce(topic, b"value %d" % number, b"key", headers=[("n", str(number))])
    assert producer.flush(30) == 0
    rows = read_both_ways(log_url, topic, 100, 400)
    assert [row["value"] for row in rows] == [b"value %d" % number for number in range(100, 400)]
    assert rows[7]["headers"] == [{"key": "n", "value": b"107"}]


def test_records_of_aborted_transactions_are_not_seen(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": connection.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(6):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(topic, b"%d.%d" % (number, each), partition=0)
        assert producer.flush(30) == 0
        if number == 5:
            break  # and this one stays open
        producer.commit_transaction(30) if number % 2 == 0 else producer.abort_transaction(30)
    stable = connection.admin().latest(topic, [0])[0]
    assert stable == 20
    rows = read_both_ways(log_url, topic, 0, stable)
    assert [row["value"].decode() for row in rows] == [f"{number}.{each}" for number in (0, 2, 4) for each in range(3)]
    assert [row["pointer"] for row in rows] == [0, 1, 2, 8, 9, 10, 16, 17, 18]
    assert read_both_ways(log_url, topic, 3, 8) == []
    producer.abort_transaction(30)


def test_any_range_gives_exactly_its_records(connection: Connection, log_url: str, topic: str) -> None:
    choice = random.Random(seed_of())
    connection.create_topic(topic, 1, {"internal.segment.bytes": "20000"})
    for number in range(2000):
        connection.send(topic, b"%d" % number)
        if choice.random() < 0.05:
            connection.flush()
    connection.flush()
    files, client = origins(log_url, topic)
    for _ in range(25):
        start = choice.randrange(2000)
        end = choice.randrange(start, 2001)
        expected = list(range(start, end))
        assert [int(row["value"]) for row in read(files, topic, start, end)] == expected
    for _ in range(3):
        start = choice.randrange(2000)
        end = choice.randrange(start, 2001)
        assert [int(row["value"]) for row in read(client, topic, start, end)] == list(range(start, end))


def test_a_reader_that_has_seen_the_files_before_sees_what_has_come(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 1)
    for begin in range(0, 50, 10):
        send_numbers(connection, topic, range(begin, begin + 10))
        rows = read_both_ways(log_url, topic, begin, begin + 10)
        assert [int(row["value"]) for row in rows] == list(range(begin, begin + 10))


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[Origin]:
    """A log of 300 records under ten keys, compacted: the latest of each, and what the last segment still has."""
    log = engine.open_log(tmp_path / "topic-0", engine.SMALL | engine.COMPACTED)
    for number in range(300):
        engine.send(log, (b"k%d" % (number % 10), b"%d" % number))
    log.roll()
    engine.compact(log)
    write_state(tmp_path / CLUSTER_FILE, b'{"cluster_id": "c"}', Disk())
    yield Origin("kafka://127.0.0.1:1", folder=LogFolder(str(tmp_path), "c"))
    log.close()


def test_ranges_of_a_compacted_topic_give_what_is_left(compacted: Origin) -> None:
    rows = read(compacted, "topic", 0, 300)
    assert len(rows) < 300
    assert {row["key"]: int(row["value"]) for row in rows} == {b"k%d" % key: 290 + key for key in range(10)}
    assert all(int(row["value"]) == row["pointer"] for row in rows)
    pieces = [row for start in range(0, 300, 7) for row in read(compacted, "topic", start, min(start + 7, 300))]
    assert pieces == rows


def test_a_folder_of_another_log_in_the_same_place_is_not_read(compacted: Origin) -> None:
    assert compacted.folder is not None
    stranger = Origin(compacted.url, folder=LogFolder(compacted.folder.path, "d"))
    with pytest.raises(BrokerUnavailableError, match=r"nothing answers.*is not on this host.*penstock serve --listen"):
        read(stranger, "topic", 0, 300)


@pytest.mark.parametrize("way", [0, 1])
def test_expired_records_are_an_error_unless_they_may_be_skipped(
    connection: Connection, log_url: str, topic: str, way: int
) -> None:
    connection.create_topic(topic, 1, {"internal.segment.bytes": "100"})
    for number in range(10):
        connection.send(topic, str(number)).result(10)
    delete_before(connection, topic, {0: 6})
    origin = origins(log_url, topic)[way]
    with pytest.raises(RecordsExpiredError) as caught:
        read(origin, topic, 2, 8)
    assert (caught.value.topic, caught.value.partition, caught.value.wanted, caught.value.earliest) == (topic, 0, 2, 6)
    rows = rows_of(list(read_range(origin, Range(topic, 0, 2, 8), RECORD.names, skip_expired=True)))
    assert [int(row["value"]) for row in rows] == [6, 7]
    assert list(read_range(origin, Range(topic, 0, 2, 5), RECORD.names, skip_expired=True)) == []


def test_files_that_end_before_the_range_does_are_an_error(connection: Connection, log_url: str, topic: str) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(10))
    files, _ = origins(log_url, topic)
    with pytest.raises(TopicReplacedError, match="records up to 11, but the partition now ends at 10"):
        read(files, topic, 5, 11)


def test_a_topic_made_again_in_the_same_folder_is_read_and_not_what_was_there_before(
    connection: Connection, log_url: str, topic: str
) -> None:
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(100))
    assert len(read_both_ways(log_url, topic, 0, 100)) == 100
    connection.delete_topic(topic)
    connection.create_topic(topic, 1)
    send_numbers(connection, topic, range(1000, 1005))
    files, _ = origins(log_url, topic)
    assert [int(row["value"]) for row in read(files, topic, 0, 5)] == list(range(1000, 1005))
