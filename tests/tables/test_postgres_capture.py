"""What a capture of PostgreSQL writes, what it refuses, and where it continues."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.errors import ChangesLostError, ConfigError, OvertakenError, SourceUnavailableError, UnsupportedTypeError
from penstock.streams import connect
from penstock.tables import Capture
from penstock.tables.cdc.postgres import pgoutput
from penstock.tables.cdc.postgres.changes import CapturedRelation, RecentValues
from penstock.tables.cdc.postgres.pgoutput import RelationColumn
from penstock.tables.cdc.status import capture_status
from tests.postgres import PostgresServer
from tests.servers import Penstock
from tests.tables.captured import (
    confirmed_lsn,
    current_lsn,
    fresh_database,
    logical_postgres,
    materialised,
    records_of,
    wait_until,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database() as url:
        yield url


@pytest.fixture
def database(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class Running:
    """A capture in a thread."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.capture.run()
        except BaseException as error:
            self.error = error

    def wait_for(self, database: psycopg.Connection[Any]) -> None:
        """Wait until everything that is committed now is stored in the stream."""
        end = current_lsn(database)
        slot = f"penstock_{self.capture.name}"
        wait_until(lambda: self.is_over() or self.capture.progress.phase == "streaming", "the snapshot is done")
        wait_until(lambda: self.is_over() or confirmed_lsn(database, slot) >= end, "everything is captured")
        if self.error is not None:
            raise self.error

    def wait_for_end(self) -> BaseException | None:
        wait_until(self.is_over, "the capture ends")
        return self.error

    def stop(self) -> None:
        self.capture.close()
        self._thread.join()

    def is_over(self) -> bool:
        return not self._thread.is_alive()


@contextlib.contextmanager
def running(url: str, stream: str, *tables: str, **options: Any) -> Iterator[Running]:
    started = Running(Capture(url, stream, tables=tables, heartbeat_s=0.1, **options))
    try:
        yield started
    finally:
        started.stop()


def topic_of(url: str, table: str) -> str:
    return f"{url.rpartition('/')[2]}.public.{table}"


def values_of(stream: str, topic: str) -> list[tuple[Any, Any]]:
    return [(json.loads(each.key or b""), each.value and json.loads(each.value)) for each in records_of(stream, topic)]


def test_rows_then_changes_are_debezium_events(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO users VALUES (1, 'Ada')")
    with running(url, stream, "public.users") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO users VALUES (2, 'Grace')")
        database.execute("UPDATE users SET name = 'Ada L.' WHERE id = 1")
        database.execute("UPDATE users SET id = 3 WHERE id = 2")
        database.execute("DELETE FROM users WHERE id = 1")
        database.execute("TRUNCATE users")
        capture.wait_for(database)
        assert capture.capture.progress.changes == 5
    found = values_of(stream, topic_of(url, "users"))
    events = [(key, value and (value["op"], value["before"], value["after"])) for key, value in found]
    assert events == [
        ({"id": 1}, ("r", None, {"id": 1, "name": "Ada"})),
        ({"id": 2}, ("c", None, {"id": 2, "name": "Grace"})),
        ({"id": 1}, ("u", None, {"id": 1, "name": "Ada L."})),
        ({"id": 2}, ("d", {"id": 2}, None)),
        ({"id": 2}, None),
        ({"id": 3}, ("c", None, {"id": 3, "name": "Grace"})),
        ({"id": 1}, ("d", {"id": 1}, None)),
        ({"id": 1}, None),
        ({"__op": "t"}, ("t", None, None)),
    ]
    source = found[1][1]["source"]
    assert (source["connector"], source["schema"], source["table"], source["snapshot"]) == (
        "postgresql", "public", "users", "false",
    )  # fmt: skip
    with connect(stream) as connection:
        settings = {each.name: each.value for each in connection.admin().config(topic_of(url, "users"))}
    assert settings["cleanup.policy"] == "compact"


def test_the_flat_form_is_the_row_and_deletes_are_tombstones(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute('CREATE TABLE "odd 100%" (id int PRIMARY KEY, "per%cent" text)')
    with running(url, stream, "public.odd*", format="flat", partitions=2) as capture:
        capture.wait_for(database)
        database.execute("""INSERT INTO "odd 100%" VALUES (1, '100%')""")
        database.execute('DELETE FROM "odd 100%"')
        database.execute('TRUNCATE "odd 100%"')
        capture.wait_for(database)
    found = values_of(stream, topic_of(url, "odd_100_"))
    of_key = [value for key, value in found if key == {"id": 1}]
    assert {name: of_key[0][name] for name in ("id", "per%cent", "__op")} == {"id": 1, "per%cent": "100%", "__op": "c"}
    assert of_key[1:] == [None]
    assert [value["__op"] for key, value in found if key == {"__op": "t"}] == ["t", "t"]  # one in each partition


def test_every_type_keeps_its_value(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    cases = {
        "smallint": ("-32768", -32768),
        "bigint": ("9223372036854775807", 9223372036854775807),
        "numeric": ("123456789012345678901234567890.10", "123456789012345678901234567890.10"),
        "numeric(5,2)": ("NaN", "NaN"),
        "real": ("0.1", 0.1),
        "double precision": ("-Infinity", "-Infinity"),
        "boolean": ("false", False),
        "text": ("a\tb\\N\n\"\x01€😀", "a\tb\\N\n\"\x01€😀"),
        "char(4)": ("ab", "ab  "),
        "bytea": ("\\x00ff5c", "AP9c"),
        "date": ("infinity", "infinity"),
        "timestamp": ("2024-02-29 23:59:59.999999", "2024-02-29T23:59:59.999999"),
        "timestamptz": ("2024-06-30 23:59:59.5 Europe/Berlin", "2024-06-30T21:59:59.5Z"),
        "timestamptz[]": ('{"0044-03-15 12:00+00 BC",NULL}', ["0044-03-15 12:00:00+00 BC", None]),
        "time": ("12:34:56.789", "12:34:56.789"),
        "timetz": ("12:34:56+02", "12:34:56+02:00"),
        "interval": ("1 year 2 mons 3 days 04:05:06.7", "P1Y2M3DT4H5M6.7S"),
        "json": ('{"b":1,  "a":null}', '{"b":1,  "a":null}'),
        "jsonb": ("null", "null"),
        "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "inet": ("192.168.0.1/24", "192.168.0.1/24"),
        "bit(3)": ("101", "101"),
        "int[]": ("{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
        "text[]": ('{"a,b","NULL",NULL,"q\\"\\\\"}', ["a,b", "NULL", None, 'q"\\']),
        "int4[]": ("[0:1]={5,6}", "[0:1]={5,6}"),
        "bytea[]": ('{"\\\\x00ff"}', ["AP8="]),
        "box[]": ("{(1,1),(0,0)}", ["(1,1),(0,0)"]),
        "tstzrange": ("[2024-01-01 00:00+00,)", '["2024-01-01 00:00:00+00",)'),
        "int4multirange": ("{[1,3),[5,6)}", "{[1,3),[5,6)}"),
        "point": ("(1,2)", "(1,2)"),
        "feeling": ("so \"so\"", "so \"so\""),
        "positive": ("5", 5),
        "pair": ('(1,"a b")', '(1,"a b")'),
        "xml": ("<a>&amp;</a>", "<a>&amp;</a>"),
        "tsvector": ("'cat':1 'dog':2", "'cat':1 'dog':2"),
    }  # fmt: skip
    database.execute("""CREATE TYPE feeling AS ENUM ('so "so"')""")
    database.execute("CREATE DOMAIN positive AS int CHECK (value > 0)")
    database.execute("CREATE TYPE pair AS (a int, b text)")
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(cases))
    database.execute(
        f"CREATE TABLE types (id int PRIMARY KEY, {columns}, made int GENERATED ALWAYS AS (1) STORED)".encode()
    )
    marks = ", ".join("%s" for _ in cases)
    insert = f"INSERT INTO types VALUES (%s, {marks})".encode()
    database.execute("ALTER DATABASE " + url.rpartition("/")[2] + " SET timezone = 'Asia/Tokyo'")
    database.execute(insert, (1, *(text for text, _ in cases.values())))
    with running(url, stream, "types") as capture:
        capture.wait_for(database)
        database.execute(insert, (2, *(text for text, _ in cases.values())))
        database.execute(insert, (3, *(None for _ in cases)))
        capture.wait_for(database)
    rows = materialised(stream, topic_of(url, "types")).rows
    for number in (1, 2):  # by COPY, and by pgoutput
        found = dict(zip(cases, list(rows[f'{{"id":{number}}}'].values())[1:], strict=True))
        assert found == {kind: value for kind, (_, value) in cases.items()}
    assert set(list(rows['{"id":3}'].values())[1:]) == {None}


def test_large_values_that_an_update_does_not_change_are_filled(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    large = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i)"
    database.execute("CREATE TABLE documents (id int PRIMARY KEY, body text, note text)")
    database.execute("CREATE TABLE whole (id int PRIMARY KEY, body text, note text)")
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    for table in ("documents", "whole"):
        database.execute(f"ALTER TABLE {table} ALTER body SET STORAGE EXTERNAL".encode())
        database.execute(f"INSERT INTO {table} VALUES (1, {large}, 'a'), (2, {large}, 'a')".encode())
    (body,) = database.execute(b"SELECT " + large.encode()).fetchone() or ("",)
    with running(url, stream, "documents", "whole") as capture:
        capture.wait_for(database)
        for table in ("documents", "whole"):
            for change in ("note = 'b'", "note = 'c', id = id + 9 WHERE id = 2", "note = 'd' WHERE id = 11"):
                database.execute(f"UPDATE {table} SET {change}".encode())
                capture.wait_for(database)
            with database.transaction():
                database.execute(f"INSERT INTO {table} VALUES (3, {large}, 'a')".encode())
                database.execute(f"UPDATE {table} SET note = 'b' WHERE id = 3".encode())
                database.execute(f"UPDATE {table} SET id = 4 WHERE id = 3".encode())
                database.execute(f"DELETE FROM {table} WHERE id = 4".encode())
        capture.wait_for(database)
    for table in ("documents", "whole"):
        values = [value for _, value in values_of(stream, topic_of(url, table)) if value and value["after"]]
        assert len(values) == 9
        assert {value["after"]["body"] for value in values} == {body}
    assert any(value["before"] and value["before"]["body"] == body for value in values)


def test_a_large_value_that_is_gone_has_a_placeholder_and_its_delete_follows(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE documents (id int PRIMARY KEY, body text, note text)")
    database.execute("ALTER TABLE documents ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO documents VALUES (1, repeat('x', 5000), 'a')")
    with running(url, stream, "documents") as capture:
        capture.wait_for(database)
        with database.transaction():
            database.execute("UPDATE documents SET note = 'b'")
            database.execute("DELETE FROM documents")
        capture.wait_for(database)
    found = values_of(stream, topic_of(url, "documents"))
    assert [value and value["op"] for _, value in found] == ["r", "u", "d", None]
    assert found[1][1]["after"] == {"id": 1, "body": "__debezium_unavailable_value", "note": "b"}


def test_columns_that_are_added_appear_with_a_new_schema_version(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
    with running(url, stream, "users", name="columns") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO users VALUES (1, 'Ada')")
        database.execute("ALTER TABLE users ADD COLUMN age int DEFAULT 36, DROP COLUMN name")
        database.execute("INSERT INTO users VALUES (2, 7)")
        capture.wait_for(database)
    found = [value for _, value in values_of(stream, topic_of(url, "users"))]
    assert [(each["after"], each["source"]["schemaVersion"]) for each in found] == [
        ({"id": 1, "name": "Ada"}, 1),
        ({"id": 2, "age": 7}, 2),
    ]
    state = {key: value for key, value in state_of(stream, "columns").items() if key == "table/public.users"}
    assert state["table/public.users"]["columns"] == [["id", "int4"], ["age", "int4"]]


def state_of(stream: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for record in records_of(stream, f"penstock.cdc.{name}"):
        key = (record.key or b"").decode()
        found[key] = record.value if key == "owner" or record.value is None else json.loads(record.value)
    return found


def test_a_stopped_snapshot_continues_with_the_next_range(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute('CREATE TABLE numbers (a text COLLATE "C", b int, PRIMARY KEY (a, b))')
    database.execute("INSERT INTO numbers SELECT 'é'''||(i % 3), i FROM generate_series(1, 100) i")
    topic = topic_of(url, "numbers")
    capture = Capture(url, stream, tables=["numbers"], snapshot_rows=10, heartbeat_s=0.1)
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: sum(each.rows for each in capture.progress.tables.values()) >= 20, "some ranges are read")
    capture.close()
    thread.join()
    database.execute("DELETE FROM numbers WHERE b IN (1, 99)")  # one range is read, the other may not be
    database.execute("UPDATE numbers SET b = b + 1000 WHERE b IN (3, 98)")
    with running(url, stream, "numbers", snapshot_rows=10) as second:
        second.wait_for(database)
    table = materialised(stream, topic)
    assert len(table.snapshot_keys) == len(set(table.snapshot_keys)) >= 98  # no range was read twice
    rows = database.execute("SELECT a, b FROM numbers").fetchall()
    assert {(row["a"], row["b"]) for row in table.rows.values()} == set(rows)


def test_a_table_that_is_added_later_gets_its_snapshot(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE first (id int PRIMARY KEY)")
    database.execute("CREATE TABLE second (id int PRIMARY KEY)")
    database.execute("INSERT INTO second VALUES (1), (2)")
    with running(url, stream, "first") as capture:
        capture.wait_for(database)
    database.execute("DELETE FROM second WHERE id = 1")
    with running(url, stream, "first", "second") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO second VALUES (3)")
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "second")).rows) == {'{"id":2}', '{"id":3}'}
    with running(url, stream, "first") as capture:  # left out for a while
        database.execute("DELETE FROM second WHERE id = 2")
        capture.wait_for(database)
    with running(url, stream, "first", "second") as capture:
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "second")).rows) == {'{"id":3}'}


def test_a_second_capture_with_the_same_name_takes_over(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    with running(url, stream, "users") as first:
        first.wait_for(database)
        database.execute("INSERT INTO users VALUES (1)")
        with running(url, stream, "users") as second:
            assert isinstance(first.wait_for_end(), OvertakenError)
            database.execute("INSERT INTO users VALUES (2)")
            second.wait_for(database)
    events = materialised(stream, topic_of(url, "users")).events
    assert [event.op for event in events] == ["c", "c"]


def test_a_capture_survives_a_restart_of_the_database_and_of_the_broker(tmp_path: Path) -> None:
    with PostgresServer({"wal_level": "logical"}) as server, Penstock(tmp_path) as broker:
        stream = f"kafka://{broker.bootstrap}"
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        with running(server.url, stream, "users") as capture:
            wait_until(lambda: capture.capture.progress.phase == "streaming", "it streams")
            server.kill()
            server.start()
            with psycopg.connect(server.url, autocommit=True) as database:
                database.execute("INSERT INTO users VALUES (1)")
                capture.wait_for(database)
                broker.kill()
                broker.start()
                database.execute("INSERT INTO users VALUES (2)")
                capture.wait_for(database)
        events = materialised(stream, "postgres.public.users").events
        assert [event.op for event in events] == ["c", "c"]


def test_changes_of_other_tables_let_the_database_remove_its_log(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    database.execute("CREATE TABLE busy (id int)")
    with running(url, stream, "quiet") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO busy SELECT generate_series(1, 1000)")
        capture.wait_for(database)
        assert capture.capture.progress.changes == 0


def test_a_stream_without_transactions_gets_rows_at_least_once(
    url: str, database: psycopg.Connection[Any], tmp_path: Path
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("INSERT INTO users VALUES (1)")
    stream = f"sqlite:{tmp_path / 'stream.db'}"
    options = {"checkpoints": f"sqlite:{tmp_path / 'checkpoints.db'}"}
    with running(url, stream, "users", **options) as capture:
        capture.wait_for(database)
        assert capture.capture.progress.guarantee == "at-least-once"
    database.execute("INSERT INTO users VALUES (2)")
    with running(url, stream, "users", **options) as capture:
        capture.wait_for(database)
    table = materialised(stream, topic_of(url, "users"))
    assert (set(table.rows), len(table.snapshot_keys)) == ({'{"id":1}', '{"id":2}'}, 1)


def test_only_a_snapshot_ends_by_itself_and_needs_no_slot(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("INSERT INTO users SELECT generate_series(1, 25)")
    with running(url, stream, "users", snapshot="only", snapshot_rows=10) as capture:
        assert capture.wait_for_end() is None
    assert len(materialised(stream, topic_of(url, "users")).rows) == 25
    assert database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()").fetchall() == []


def test_without_a_snapshot_only_changes_are_captured(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("INSERT INTO users VALUES (1)")
    with running(url, stream, "users", snapshot="never") as capture:
        wait_until(lambda: capture.capture.progress.phase == "streaming", "it streams")
        database.execute("INSERT INTO users VALUES (2)")
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "users")).rows) == {'{"id":2}'}


def test_a_slot_that_is_gone_is_data_loss_and_a_new_snapshot_repairs_it(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("INSERT INTO users VALUES (1), (2)")
    with running(url, stream, "users", name="gone") as capture:
        capture.wait_for(database)
    wait_until(lambda: _dropped(database, "penstock_gone"), "the slot is dropped")
    database.execute("DELETE FROM users WHERE id = 1")
    with pytest.raises(ChangesLostError, match=r"no longer has the replication slot 'penstock_gone'.*--snapshot again"):
        Capture(url, stream, tables=["users"], name="gone").run()
    with running(url, stream, "users", name="gone", snapshot="again") as capture:
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "users")).rows) == {'{"id":2}'}


def _dropped(database: psycopg.Connection[Any], slot: str) -> bool:
    try:
        database.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_a_slot_that_someone_else_read_is_data_loss(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    with running(url, stream, "users", name="read") as capture:
        capture.wait_for(database)
    database.execute("INSERT INTO users VALUES (1)")
    wait_until(lambda: _advanced(database, "penstock_read"), "the slot is advanced")
    with pytest.raises(ChangesLostError, match="something else has read from it"):
        Capture(url, stream, tables=["users"], name="read").run()


def _advanced(database: psycopg.Connection[Any], slot: str) -> bool:
    try:
        database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
    except psycopg.errors.ObjectInUse:
        return False
    return True


def test_a_slot_that_fell_behind_is_reported_as_lost(stream: str) -> None:
    settings = {"wal_level": "logical", "max_slot_wal_keep_size": "16MB"}
    with PostgresServer(settings) as server, psycopg.connect(server.url, autocommit=True) as database:
        database.execute("CREATE TABLE users (id int PRIMARY KEY)")
        with running(server.url, stream, "users", name="behind") as capture:
            capture.wait_for(database)
        (before,) = capture_status(server.url, "behind", 0.0)
        assert (before.state, before.is_lost, before.limit) == ("idle", False, "max_slot_wal_keep_size")
        wait_until(lambda: _is_lost(database), "the log of the slot is removed")
        with pytest.raises(ChangesLostError, match="max_slot_wal_keep_size was exceeded"):
            Capture(server.url, stream, tables=["users"], name="behind").run()
        (after,) = capture_status(server.url, None, 0.0)
        assert (after.state, after.is_lost, after.room_bytes) == ("lost", True, 0)


def _is_lost(database: psycopg.Connection[Any]) -> bool:
    """Write on until the server gives up the slot."""
    database.execute("SELECT pg_logical_emit_message(false, 'test', 'more')")
    database.execute("SELECT pg_switch_wal()")
    database.execute("CHECKPOINT")
    row = database.execute("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'penstock_behind'").fetchone()
    return row is not None and row[0] == "lost"


def test_the_status_tells_how_long_until_the_log_is_full(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, body text)")
    with running(url, stream, "users", name="status") as capture:
        capture.wait_for(database)
    database.execute("INSERT INTO users SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    writing = threading.Event()

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not writing.is_set():
                connection.execute("UPDATE users SET body = repeat('y', 100)")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        (found,) = capture_status(url, "status", 0.5)
    finally:
        writing.set()
        thread.join()
    assert found.behind_bytes is not None
    assert found.behind_bytes > 100_000
    assert found.kept_bytes >= found.behind_bytes
    assert found.limit == "disk"
    assert found.written_bytes_per_s is not None
    assert found.written_bytes_per_s > 0
    assert found.room_bytes is not None
    assert found.time_to_loss_s == pytest.approx(found.room_bytes / found.written_bytes_per_s)
    with pytest.raises(ConfigError, match="no replication slot"):
        capture_status(url, "other", 0.0)


def test_the_log_is_watched_while_the_snapshot_is_read(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO users SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i")
    capture = Capture(url, stream, tables=["users"], snapshot_rows=1)
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: capture.progress.phase != "starting", "it has begun")
    database.execute("UPDATE users SET body = 'y'")
    wait_until(lambda: capture.progress.room_bytes is not None, "the room is known")
    is_in_snapshot = capture.progress.phase == "snapshot"
    capture.close()
    thread.join()
    assert is_in_snapshot
    assert capture.progress.lag_bytes is not None


def test_what_is_remembered_of_large_rows_is_bounded() -> None:
    relation = pgoutput.Relation(1, "public", "t", "d", tuple(RelationColumn(f"c{n}", 25, n == 0) for n in range(300)))
    table = CapturedRelation(relation, None, (), (0,), (), "", None)  # type: ignore[arg-type]  # only asked for names
    recent = RecentValues(limit_bytes=60_000)
    for number in range(1_000):
        small: list[Any] = [b"%d" % number, *([b"short value"] * 299)]
        recent.keep(table, b"%d" % number, small, 4_000)
    assert len(recent) == 0
    for number in range(1_000):
        large: list[Any] = [b"%d" % number, *([b"x" * 40] * 299)]
        recent.keep(table, b"%d" % number, large, 12_000)
    assert len(recent) == 1
    recent.forget_table(1)
    assert len(recent) == 0


@pytest.mark.parametrize(
    ("set_up", "tables", "message"),
    [
        ("CREATE TABLE t (id int)", ["t"], "has no primary key.*ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int PRIMARY KEY)", ["u*"], "no table matches 'u\\*': there are public.t"),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", ["t"], "unlogged"),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", ["t"], "IDENTITY DEFAULT"),
        (
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT",
            ["public.t1"],
            "is a partition",
        ),
        ("CREATE TABLE t (id int PRIMARY KEY, price money)", ["t"], "column 'price' of table public.t has the type"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_captured_are_refused_before_anything_starts(
    url: str, stream: str, database: psycopg.Connection[Any], set_up: str, tables: list[str], message: str
) -> None:
    database.execute(set_up)
    with pytest.raises(ConfigError, match=message) as refused:
        Capture(url, stream, tables=tables, name="refused").run()
    assert ("column" in message) == isinstance(refused.value, UnsupportedTypeError)
    assert database.execute("SELECT 1 FROM pg_publication").fetchall() == []
    assert database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()").fetchall() == []


def test_a_server_that_is_not_set_up_is_refused_with_the_remedy(stream: str, tmp_path: Path) -> None:
    with PostgresServer() as server:
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match="wal_level = replica: run ALTER SYSTEM SET wal_level = logical"):
            Capture(server.url, stream, tables=["t"]).run()
    with pytest.raises(SourceUnavailableError, match="is unavailable"):
        Capture(server.url, stream, tables=["t"]).run()


def test_rights_that_are_missing_are_named(url: str, stream: str, database: psycopg.Connection[Any]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader LOGIN")
    weak = url.replace("penstock@", "reader@")
    try:
        with pytest.raises(ConfigError, match=r"GRANT SELECT ON public\.t"):
            Capture(weak, stream, tables=["t"], name="weak").run()
        database.execute("GRANT SELECT ON t TO reader")
        with pytest.raises(ConfigError, match="ALTER ROLE <this user> REPLICATION"):
            Capture(weak, stream, tables=["t"], name="weak").run()
        database.execute("ALTER ROLE reader REPLICATION")
        with pytest.raises(ConfigError, match="let their owner run CREATE PUBLICATION"):
            Capture(weak, stream, tables=["t"], name="weak").run()
        database.execute("CREATE PUBLICATION given FOR TABLE t")
        with running(weak, stream, "t", name="weak", publication="given") as capture:
            capture.wait_for(database)
            database.execute("INSERT INTO t VALUES (1)")
            capture.wait_for(database)
        assert set(materialised(stream, topic_of(url, "t")).rows) == {'{"id":1}'}
    finally:
        database.execute("DROP OWNED BY reader")
        database.execute("DROP ROLE reader")


def test_a_publication_of_some_columns_and_rows_limits_the_snapshot_too(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, secret money, shown text)")
    database.execute("INSERT INTO t VALUES (1, 5, 'a'), (200, 6, 'b')")
    database.execute("CREATE PUBLICATION part FOR TABLE t (id, shown) WHERE (id < 100)")
    with running(url, stream, "t", publication="part") as capture:
        capture.wait_for(database)
        database.execute("INSERT INTO t VALUES (2, 5, 'c'), (201, 6, 'd')")
        capture.wait_for(database)
    assert list(materialised(stream, topic_of(url, "t")).rows.values()) == [
        {"id": 1, "shown": "a"},
        {"id": 2, "shown": "c"},
    ]


def test_a_capture_of_another_database_or_form_is_refused(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with running(url, stream, "t", name="same") as capture:
        capture.wait_for(database)
    with pytest.raises(ConfigError, match="writes the form 'debezium', not 'flat'"):
        Capture(url, stream, tables=["t"], name="same", format="flat").run()
    with fresh_database() as other, psycopg.connect(other, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match="captures 'postgresql:"):
            Capture(other, stream, tables=["t"], name="same").run()


def test_a_slot_without_a_capture_in_this_stream_is_not_touched(
    url: str, stream: str, database: psycopg.Connection[Any]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION penstock_mine FOR TABLE t")
    database.execute("SELECT pg_create_logical_replication_slot('penstock_mine', 'pgoutput')")
    database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigError, match="but this stream has no capture of the name 'mine'"):
        Capture(url, stream, tables=["t"], name="mine").run()
    with running(url, stream, "t", name="mine", slot="penstock_mine", snapshot="never") as capture:
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "t")).rows) == {'{"id":1}'}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tables": []}, "must be names of tables"),
        ({"tables": "public.users"}, "must be names of tables"),
        ({"name": "With Space"}, "characters a-z, 0-9 and _"),
        ({"format": "avro"}, "must be one of debezium, flat"),
        ({"snapshot": "later"}, "must be one of initial, never, only, again"),
        ({"partitions": 0}, "must be an integer >= 1"),
        ({"heartbeat_s": 0}, "must be positive"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Capture(logical_postgres().url, "memory:", **{"tables": ["t"], **options})
