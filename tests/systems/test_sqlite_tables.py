"""Tables of SQLite as topics: those that we make, and existing ones."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.main import app as command
from penstock.errors import (
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    PenstockError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import Position
from penstock.streams.sql.sqlite import ROWS_AT_ONCE
from penstock.testing import conformance
from tests import system_table
from tests.seeds import seed_of
from tests.systems.killed_app import FAILS_ALWAYS, run_and_kill

pytestmark = [pytest.mark.system("SQLite"), pytest.mark.xdist_group("sqlite tables")]


def open_tables(folder: Path) -> penstock.Connection:
    connection = penstock.connect(f"sqlite:{folder / 'events.db'}")
    system_table.met("SQLite", f"SQLite {sqlite3.sqlite_version}", connection.features)
    return connection


def delete_rows(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    with closing(sqlite3.connect(connection.url.partition(":")[2], timeout=30)) as database, database:
        database.execute(f'DELETE FROM "{topic}" WHERE partition = ? AND id < ?', (partition, before))


class TestConformance(conformance.stream(open_tables, expire=delete_rows)):  # type: ignore[misc]
    """Everything that a stream promises, with processes that are killed."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)) as connection:
        yield connection


@pytest.mark.parametrize("count", [1, ROWS_AT_ONCE - 1, ROWS_AT_ONCE, 2 * ROWS_AT_ONCE + 7])
def test_each_column_keeps_its_place_however_many_rows_one_statement_inserts(path: Path, count: int) -> None:
    with penstock.connect(f"sqlite:{path}") as stream, closing(stream.open_topic("orders")) as topic:
        stream.create_topic("orders", 2)
        sent = [
            penstock.NewRecord(
                "orders",
                None if number % 5 == 4 else b"value %d" % number,
                b"key %d" % number if number % 3 else None,
                (("n", b"%d" % number),) if number % 7 == 0 else (),
                1_000 + number,
                number % 2,
            )
            for number in range(count)
        ]
        places = [receipt.result(30) for receipt in topic.append(sent)]
        assert [(place.partition, place.offset) for place in places] == [(n % 2, n // 2) for n in range(count)]
        for partition in (0, 1):
            found = topic.read(partition, 0, count, 0.0)
            assert [(r.offset, r.value, r.key, r.headers, r.timestamp_ms) for r in found] == [
                (n, r.value, r.key, r.headers, r.timestamp_ms) for n, r in enumerate(sent[partition::2])
            ]


def test_a_row_that_another_program_inserts_is_a_record(path: Path, database: sqlite3.Connection) -> None:
    with penstock.connect(f"sqlite:{path}") as stream:
        stream.create_topic("orders.v1", 2)
        stream.send("orders.v1", b"ours", partition=0).result(10)
        database.execute("""INSERT INTO "orders.v1" (key, value, headers) VALUES ('k', 'theirs', '{"trace": "7"}')""")
        database.execute("""INSERT INTO "orders.v1" (partition, timestamp_ms) VALUES (1, 5)""")
        stream.send("orders.v1", b"again", partition=0).result(10)
        found = list(stream.read("orders.v1", partitions=[0]))
        assert [(record.offset, record.key, record.value) for record in found] == [
            (0, None, b"ours"),
            (1, b"k", b"theirs"),
            (2, None, b"again"),
        ]
        assert found[1].headers == (("trace", b"7"),)
        assert abs((found[1].timestamp_ms or 0) - (found[2].timestamp_ms or 0)) < 60_000
        [tombstone] = stream.read("orders.v1", partitions=[1])
        assert (tombstone.value, tombstone.timestamp_ms) == (None, 5)
        with pytest.raises(sqlite3.IntegrityError, match="no such partition"):
            database.execute("""INSERT INTO "orders.v1" (partition) VALUES (7)""")


def test_a_reader_sees_whole_transactions_in_their_order(path: Path, database: sqlite3.Connection) -> None:
    with penstock.connect(f"sqlite:{path}") as stream:
        stream.create_topic("orders")
        topic = stream.open_topic("orders")
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO orders (value) VALUES ('first')")
        receipt = stream.send("orders", b"second")
        assert not topic.read(0, 0, 10, 0.1)
        assert not receipt.done
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(topic.read, 0, 0, 1, 30.0)
            database.execute("COMMIT")
            assert [record.value for record in waiting.result(30)] == [b"first"]
        assert receipt.result(30).offset == 1


def test_an_append_fails_when_another_program_writes_for_too_long(path: Path, database: sqlite3.Connection) -> None:
    with penstock.connect(f"sqlite:{path}?busy_timeout_s=0.2") as stream:
        stream.create_topic("orders")
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(DeliveryError, match="wrote to this database for too long") as raised:
            stream.send("orders", b"late").result(30)
        assert raised.value.retriable
        database.execute("ROLLBACK")
        assert stream.send("orders", b"again").result(10).offset == 0


def test_rows_of_an_existing_table_come_as_json_objects(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, who TEXT, at, body BLOB, n REAL)")
    database.execute("INSERT INTO outbox VALUES (3, 'ann', '2026-01-02T03:04:05.678Z', x'00ff', 1.5)")
    database.execute("INSERT INTO outbox (who, at) VALUES ('bob', 1767323045679)")
    database.execute("CREATE TABLE other (name TEXT)")
    url = f"sqlite:{path}?id_column=id&key_column=who&timestamp_column=at"
    with penstock.connect(url) as stream:
        assert stream.topics() == ["outbox"]
        first, second = stream.read("outbox")
        assert (first.offset, first.key, first.timestamp_ms) == (3, b"ann", 1767323045678)
        assert json.loads(first.value or b"") == {
            "id": 3,
            "who": "ann",
            "at": "2026-01-02T03:04:05.678Z",
            "body": "AP8=",
            "n": 1.5,
        }
        assert (second.offset, second.timestamp_ms) == (4, 1767323045679)
        assert stream.open_topic("outbox").locate(0, Position.at_time(1767323045679)) == 4
        with pytest.raises(ConfigError, match="nothing is written"):
            stream.create_topic("more")
    with penstock.connect(f"{url}&payload_column=body") as stream:
        assert [record.value for record in stream.read("outbox")] == [b"\x00\xff", None]
    tables = database.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'penstock%'").fetchall()
    assert tables == [(0,)], "existing tables are read, and nothing is added"


def test_deleted_rows_of_an_existing_table_are_an_error_or_skipped(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    database.executemany("INSERT INTO outbox VALUES (?)", [(number,) for number in range(1, 6)])
    database.execute("DELETE FROM outbox WHERE id < 4")
    with penstock.connect(f"sqlite:{path}?id_column=id") as stream:
        topic = stream.open_topic("outbox")
        with pytest.raises(OffsetOutOfRangeError, match="holds 4 to 6"):
            topic.read(0, 2, 10, 0.0)
        with pytest.raises(OffsetOutOfRangeError, match="not been written"):
            topic.read(0, 50, 10, 0.0)
        database.execute("DELETE FROM outbox")
        assert not topic.read(0, 6, 10, 0.0)
        database.execute("INSERT INTO outbox DEFAULT VALUES")
        assert [record.offset for record in topic.read(0, 6, 10, 0.0)] == [6]
    with penstock.connect(f"sqlite:{path}?id_column=id&deleted_rows=skip") as stream:
        assert [record.offset for record in stream.open_topic("outbox").read(0, 2, 10, 0.0)] == [6]


def test_what_cannot_be_done_is_refused(path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE taken (name TEXT, number INTEGER)")
    with penstock.connect(f"sqlite:{path}") as stream:
        with pytest.raises(UnknownTopicError, match="has no topic 'orders': create it"):
            stream.open_topic("orders").partitions()
        with pytest.raises(UnknownTopicError, match="has no topic 'orders'"):
            stream.open_topic("orders").read(0, 0, 1, 0.0)
        with pytest.raises(TopicExistsError, match="already has a table or topic 'Taken'"):
            stream.create_topic("Taken")
        stream.create_topic("orders")
        stream.delete_topic("orders")
        assert stream.topics() == []
    with penstock.connect(f"sqlite:{path}?id_column=number") as stream:
        with pytest.raises(ConfigError, match="is not its INTEGER PRIMARY KEY"):
            stream.open_topic("taken").partitions()
        with pytest.raises(UnknownTopicError, match="has no table 'missing'"):
            stream.open_topic("missing").partitions()
    missing = pytest.raises(ConfigError, match="has no column 'id'; it has name, number")
    with penstock.connect(f"sqlite:{path}?id_column=id") as stream, missing:
        stream.open_topic("taken").partitions()


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlite:{path}?speed=3", ConfigError, "has no setting 'speed'; sqlite: has"),
        ("sqlite:{path}?synchronous=OFF", ConfigError, "must be one of FULL, NORMAL"),
        ("sqlite:{path}?poll_interval_s=-1", ConfigError, "must be positive"),
        ("sqlite:", UrlError, "names no file"),
        ("sqlite:///{path}", UrlError, "write the path right after the colon"),
        ("sqlite:{path}.missing?id_column=id", ConfigError, "does not exist"),
        ("sqlite:{path}", ConfigError, "is not a SQLite database"),
    ],
)
def test_urls_are_checked(path: Path, url: str, error: type[PenstockError], message: str) -> None:
    path.write_bytes(b"this is not a database, but it is long enough to be looked at" * 20)
    with pytest.raises(error, match=message):
        penstock.connect(url.format(path=path))


@pytest.mark.parametrize("existing", [False, True])
def test_an_app_whose_process_is_killed_handles_every_record(
    path: Path, database: sqlite3.Connection, tmp_path: Path, existing: bool
) -> None:
    letters = {}
    if existing:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, number INTEGER)")
        database.executemany("INSERT INTO orders (number) VALUES (?)", [(number,) for number in range(200)])
        url = f"sqlite:{path}?id_column=id&value_columns=number"
        letters = {"dead_letters": f"sqlite:{tmp_path / 'letters.db'}"}
    else:
        url = f"sqlite:{path}"
        with penstock.connect(url) as stream:
            stream.create_topic("orders", 2)
            for number in range(200):
                stream.send("orders", b"%d" % number, key=b"%d" % (number % 7))
    found = run_and_kill(url, "orders", tmp_path, random.Random(seed_of()).randint(20, 150), **letters)
    assert set(found) == {b"%d" % number for number in range(200)} - {FAILS_ALWAYS}


def test_the_commands_work_on_it(path: Path) -> None:
    run, url = CliRunner().invoke, f"sqlite:{path}"
    assert run(command, ["topics", "create", "orders", "--url", url]).exit_code == 0
    assert run(command, ["produce", "orders", "--url", url], input="first\nsecond\n").exit_code == 0
    assert run(command, ["consume", "orders", "--format", "raw", "--url", url]).output == "first\nsecond\n"


def test_a_record_over_the_limit_is_refused_and_the_others_are_stored(path: Path) -> None:
    with penstock.connect(f"sqlite:{path}?max_record_bytes=1000") as stream:
        stream.create_topic("t")
        first, large, last = (stream.send("t", value) for value in (b"1", b"x" * 1001, b"3"))
        with pytest.raises(
            DeliveryError, match=r"1001 bytes .* larger than max_record_bytes=1000: raise that"
        ) as refused:
            large.result(10)
        assert not refused.value.retriable
        assert [first.result(10).offset, last.result(10).offset] == [0, 1]
        assert stream.send("t", b"x" * 1000).result(10).offset == 2
