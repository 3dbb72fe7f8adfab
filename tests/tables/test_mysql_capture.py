"""What a capture of MariaDB writes, what it refuses, and where it continues."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import pytest

from penstock.errors import (
    ChangesLostError,
    ConfigError,
    MissingExtraError,
    OvertakenError,
    SourceUnavailableError,
    UnsupportedTypeError,
)
from penstock.tables import Capture, Table
from penstock.tables.cdc.status import capture_status
from tests.mariadb import MariadbServer, fresh_database, shared_mariadb
from tests.servers import Penstock
from tests.tables.captured import fail_first_set_up, materialised, records_of, wait_until
from tests.tables.captured_mysql import Database, running

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest.fixture
def stream(broker: Penstock) -> str:
    return f"kafka://{broker.bootstrap}"


@pytest.fixture
def url() -> Iterator[str]:
    with fresh_database(f"cdc_{next(_numbers)}") as url:
        yield url


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with contextlib.closing(Database(url)) as database:
        yield database


def topic_of(url: str, table: str) -> str:
    name = url.rpartition("/")[2]
    return f"{name}.{name}.{table}"


def values_of(stream: str, topic: str) -> list[tuple[Any, Any]]:
    return [(json.loads(each.key or b""), each.value and json.loads(each.value)) for each in records_of(stream, topic)]


def test_rows_then_changes_are_debezium_events(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'Ada')")
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
        database.run(
            "INSERT INTO users VALUES (2, 'Grace')",
            "UPDATE users SET name = 'Ada L.' WHERE id = 1",
            "UPDATE users SET id = 3 WHERE id = 2",
            "DELETE FROM users WHERE id = 1",
            "TRUNCATE users",
        )
        capture.wait_for(database)
        assert capture.capture.progress.changes == 5
    found = values_of(stream, topic_of(url, "users"))
    events = [(key, value and (value["op"], value["before"], value["after"])) for key, value in found]
    assert events == [
        ({"id": 1}, ("r", None, {"id": 1, "name": "Ada"})),
        ({"id": 2}, ("c", None, {"id": 2, "name": "Grace"})),
        ({"id": 1}, ("u", {"id": 1, "name": "Ada"}, {"id": 1, "name": "Ada L."})),
        ({"id": 2}, ("d", {"id": 2, "name": "Grace"}, None)),
        ({"id": 2}, None),
        ({"id": 3}, ("c", None, {"id": 3, "name": "Grace"})),
        ({"id": 1}, ("d", {"id": 1, "name": "Ada L."}, None)),
        ({"id": 1}, None),
        ({"__op": "t"}, ("t", None, None)),
    ]
    source = found[1][1]["source"]
    assert (source["connector"], source["db"], source["table"], source["snapshot"], source["row"]) == (
        "mariadb", database.name, "users", "false", 0,
    )  # fmt: skip
    assert source["gtid"].startswith("0-1-")


CASES: Final[dict[str, tuple[str, Any]]] = {
    "tinyint": ("-128", -128),
    "tinyint unsigned": ("255", 255),
    "year": ("2024", 2024),
    "smallint unsigned": ("65535", 65535),
    "mediumint": ("-8388608", -8388608),
    "mediumint unsigned": ("16777215", 16777215),
    "int unsigned zerofill": ("42", 42),
    "bigint": ("-9223372036854775808", -(2**63)),
    "bigint unsigned": ("18446744073709551615", 2**64 - 1),
    "bool": ("true", 1),
    "decimal(38,10)": ("-1234567890123456789012345678.0123456789", "-1234567890123456789012345678.0123456789"),
    "decimal(5,5)": ("-0.00001", "-0.00001"),
    "decimal(65,0)": ("9" * 65, "9" * 65),
    "decimal(9,2) unsigned zerofill": ("12.5", "12.50"),
    "decimal(10,3)": ("0", "0.000"),
    "float": ("0.1", 0.1),
    "float unsigned": ("16777216", 16777216.0),
    "double": ("-1.7976931348623157e308", -1.7976931348623157e308),
    "double precision": ("5e-324", 5e-324),
    "char(4)": ("'ab '", "ab"),
    "char(200)": ("'€äö😀'", "€äö😀"),
    "varchar(20)": ("'tab\\t \"quote\" \\\\ \\n\\0€😀'", 'tab\t "quote" \\ \n\0€😀'),
    "varchar(300) character set latin1": ("'ÿ€'", "ÿ€"),
    "varchar(20) character set utf16": ("'漢😀'", "漢😀"),
    "varchar(20) character set koi8r": ("'привет'", "привет"),
    "text character set cp1251": ("'привет'", "привет"),
    "tinytext": ("''", ""),
    "longtext": ("repeat('x', 70000)", "x" * 70000),
    "enum('a', 'it''s', 'ü', 'b\\\\c')": ("'b\\\\c'", "b\\c"),
    "enum('x') character set latin1": ("''", ""),
    "set('a', 'b', 'ü')": ("'a,ü'", "a,ü"),
    "set('q')": ("''", ""),
    "bit(1)": ("b'1'", "1"),
    "bit(11)": ("b'101'", "00000000101"),
    "bit(64)": ("0xffffffffffffffff", "1" * 64),
    "binary(4)": ("x'ff00'", "/wAAAA=="),
    "varbinary(9)": ("x'00ff5c'", "AP9c"),
    "blob": ("x''", ""),
    "mediumblob": ("repeat(x'00', 3)", "AAAA"),
    "date": ("'2024-02-29'", "2024-02-29"),
    "date not null": ("'0000-00-00'", "0000-00-00"),
    "date default null": ("'2020-00-00'", "2020-00-00"),
    "datetime": ("'9999-12-31 23:59:59'", "9999-12-31T23:59:59"),
    "datetime(6)": ("'1000-01-01 00:00:00.000001'", "1000-01-01T00:00:00.000001"),
    "datetime(3)": ("'0000-00-00'", "0000-00-00T00:00:00.000"),
    "datetime(1)": ("'2024-06-30 12:34:56.7'", "2024-06-30T12:34:56.7"),
    "timestamp null": ("'2024-06-30 23:59:59'", "2024-06-30T21:59:59Z"),
    "timestamp(6) null": ("'1970-01-01 01:00:00.5'", "1970-01-01T00:00:00.500000Z"),
    "timestamp(2) null": ("'2038-01-19 04:14:07.99'", "2038-01-19T02:14:07.99Z"),
    "timestamp(3) null default null": ("'0000-00-00'", "0000-00-00T00:00:00.000Z"),
    "time": ("'-838:59:59'", "-838:59:59"),
    "time(6)": ("'838:59:59'", "838:59:59.000000"),
    "time(3)": ("'-00:00:00.5'", "-00:00:00.500"),
    "time(1)": ("'-12:34:56.7'", "-12:34:56.7"),
    "json": ('\'{"b":1,  "a":null}\'', '{"b":1,  "a":null}'),
    "point": ("point(1, 2)", "AAAAAAEBAAAAAAAAAAAA8D8AAAAAAAAAQA=="),
}


def test_every_type_keeps_its_value(url: str, stream: str, database: Database) -> None:
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(CASES))
    values = ", ".join(text for text, _ in CASES.values())
    names = ", ".join(f"c{number}" for number in range(len(CASES)))
    database.run(
        f"CREATE TABLE types (id int PRIMARY KEY, {columns}, made int AS (id + 1) VIRTUAL, kept int AS (id) STORED)",
        "SET time_zone = '+02:00'",
        "SET sql_mode = ''",
        f"INSERT INTO types (id, {names}) VALUES (1, {values})",
    )
    with running(url, stream, "types") as capture:
        capture.wait_for(database)
        nullable = [number for number, kind in enumerate(CASES) if kind != "date not null"]
        database.run(
            f"INSERT INTO types (id, {names}) VALUES (2, {values})",
            "INSERT INTO types (id) VALUES (3)",
            "UPDATE types SET " + ", ".join(f"c{number} = NULL" for number in nullable) + " WHERE id = 3",
        )
        capture.wait_for(database)
    rows = materialised(stream, topic_of(url, "types")).rows
    for number in (1, 2):  # by a query, and by the binlog
        found = rows[f'{{"id":{number}}}']
        assert {kind: found[f"c{place}"] for place, kind in enumerate(CASES)} == {
            kind: value for kind, (_, value) in CASES.items()
        }
        assert set(found) == {"id", *(f"c{place}" for place in range(len(CASES)))}
    assert {rows['{"id":3}'][f"c{number}"] for number in nullable} == {None}


def test_the_flat_form_is_the_row_and_deletes_are_tombstones(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE `odd 100%` (id int PRIMARY KEY, `per%cent` text)")
    with running(url, stream, "odd*", format="flat", partitions=2) as capture:
        capture.wait_for(database)
        database.run("INSERT INTO `odd 100%` VALUES (1, '100%')", "DELETE FROM `odd 100%`", "TRUNCATE TABLE `odd 100%`")
        capture.wait_for(database)
    found = values_of(stream, topic_of(url, "odd_100_"))
    of_key = [value for key, value in found if key == {"id": 1}]
    assert {name: of_key[0][name] for name in ("id", "per%cent", "__op")} == {"id": 1, "per%cent": "100%", "__op": "c"}
    assert of_key[0]["__pos"] >> 32 > 0
    assert of_key[1:] == [None]
    assert [value["__op"] for key, value in found if key == {"__op": "t"}] == ["t", "t"]  # one in each partition


def test_a_table_is_kept_fresh_by_a_capture(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY, name text)", "INSERT INTO users VALUES (1, 'Ada')")
    with running(url, stream, "users") as capture:
        capture.wait_for(database)
        with Table(stream, topic_of(url, "users"), format="debezium") as table:
            table.wait_until_caught_up()
            assert table[1]["name"] == "Ada"
            database.run("UPDATE users SET name = 'Ada L.'", "INSERT INTO users VALUES (2, 'Grace')")
            capture.wait_for(database)
            table.wait_until_caught_up()
            assert {row["name"] for _, row in table.items()} == {"Ada L.", "Grace"}


def test_what_is_rolled_back_is_not_captured_although_the_server_logs_it(
    url: str, stream: str, database: Database
) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY)", "CREATE TABLE notes (id int PRIMARY KEY) ENGINE = MyISAM")
    with running(url, stream, "users", "notes", name="rolled") as capture:
        capture.wait_for(database)
        database.run("BEGIN", "CREATE TEMPORARY TABLE t (id int)", "INSERT INTO users VALUES (1)", "ROLLBACK")
        database.run("BEGIN", "INSERT INTO users VALUES (2)", "SAVEPOINT s", "INSERT INTO users VALUES (3)")
        database.run("INSERT INTO notes VALUES (4)", "ROLLBACK TO s", "INSERT INTO users VALUES (5)", "COMMIT")
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "users")).rows) == {'{"id":2}', '{"id":5}'}
    assert set(materialised(stream, topic_of(url, "notes")).rows) == {'{"id":4}'}


def test_a_rolled_back_transaction_that_is_partly_in_the_topic_is_reported(
    url: str, stream: str, database: Database
) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY)")
    with running(url, stream, "users", name="partly", batch_rows=2) as capture:
        capture.wait_for(database)
        database.run("BEGIN", "CREATE TEMPORARY TABLE t (id int)", "INSERT INTO users VALUES (1), (2), (3)", "ROLLBACK")
        error = capture.wait_for_end()
    assert isinstance(error, ChangesLostError)
    assert "--batch-rows" in str(error)


def test_columns_that_are_added_appear_with_a_new_schema_version(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY, name text)")
    with running(url, stream, "users", name="columns") as capture:
        capture.wait_for(database)
        database.run(
            "INSERT INTO users VALUES (1, 'Ada')",
            "ALTER TABLE users ADD COLUMN age int DEFAULT 36 FIRST, DROP COLUMN name, ADD COLUMN v int AS (2) VIRTUAL",
            "INSERT INTO users (age, id) VALUES (7, 2)",
        )
        capture.wait_for(database)
    found = [value for _, value in values_of(stream, topic_of(url, "users"))]
    assert [(each["after"], each["source"]["schemaVersion"]) for each in found] == [
        ({"id": 1, "name": "Ada"}, 1),
        ({"age": 7, "id": 2}, 2),
    ]


def test_old_changes_keep_the_names_that_columns_had_then(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY, a int, b int)")
    with running(url, stream, "users", name="names") as capture:
        capture.wait_for(database)
    database.run(
        "INSERT INTO users VALUES (1, 2, 3)",
        "ALTER TABLE users RENAME COLUMN a TO c, RENAME COLUMN b TO a",
        "INSERT INTO users VALUES (2, 4, 5)",
    )
    with running(url, stream, "users", name="names") as capture:
        capture.wait_for(database)
    found = [value["after"] for _, value in values_of(stream, topic_of(url, "users"))]
    assert found == [{"id": 1, "a": 2, "b": 3}, {"id": 2, "c": 4, "a": 5}]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("RENAME TABLE users TO people", "was dropped, replaced or renamed"),
        ("ALTER TABLE users ADD COLUMN b int, RENAME TO people", "was dropped, replaced or renamed"),
        ("RENAME TABLE spare TO users2, users TO spare, users2 TO users", "was dropped, replaced or renamed"),
        ("DROP TABLE IF EXISTS users", "was dropped, replaced or renamed"),
        ("CREATE OR REPLACE TABLE users (id int PRIMARY KEY)", "was dropped, replaced or renamed"),
        ("SET STATEMENT max_statement_time = 5 FOR DROP TABLE users", "was dropped, replaced or renamed"),
        ("ALTER TABLE users DROP PRIMARY KEY, ADD PRIMARY KEY (id, a)", r"the key of table .* changed|no primary key"),
        ("ALTER TABLE users DROP PRIMARY KEY", "no primary key"),
        ("ALTER TABLE users ADD COLUMN u uuid", "has the type uuid, which cannot be captured"),
        ("ALTER TABLE users ADD FOREIGN KEY (a) REFERENCES spare (id) ON DELETE CASCADE", "not in the binlog"),
        ("ALTER TABLE parts TRUNCATE PARTITION low", "was changed without events for its rows"),
        ("SET binlog_format = STATEMENT", "was logged as text"),
        ("SET binlog_row_image = MINIMAL", "binlog_row_image"),
        ("XA START 'x'", "XA transaction"),
    ],
)  # fmt: skip
def test_what_would_lose_changes_ends_the_capture_with_an_error_at_that_place(
    url: str, stream: str, database: Database, statement: str, message: str
) -> None:
    name = f"ended_{next(_numbers)}"
    database.run(
        "CREATE TABLE spare (id int PRIMARY KEY)",
        "CREATE TABLE users (id int PRIMARY KEY, a int NOT NULL DEFAULT 1, note text)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION low VALUES LESS THAN (5), PARTITION high VALUES LESS THAN MAXVALUE)",
        "INSERT INTO spare VALUES (1)",
        "INSERT INTO users VALUES (1, 1, 'a'), (2, 1, 'b')",
    )
    with running(url, stream, "users", "parts", name=name) as capture:
        capture.wait_for(database)
        database.run(statement)
        if statement.startswith(("SET binlog", "XA", "ALTER TABLE users DROP PRIMARY KEY, ADD")):
            database.run("UPDATE users SET note = 'c' WHERE id = 1")
        if statement.startswith("XA"):
            database.run("XA END 'x'", "XA PREPARE 'x'", "XA ROLLBACK 'x'")
        error = capture.wait_for_end()
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=message):
        raise error
    assert len(values_of(stream, topic_of(url, "users"))) == 2  # nothing of it is in the topic


def test_rows_that_were_loaded_by_a_statement_end_the_capture(url: str, stream: str, database: Database) -> None:
    file = shared_mariadb().folder / "rows.txt"
    file.write_text("7\n8\n", "ascii")
    database.run("CREATE TABLE users (id int PRIMARY KEY)", "SET binlog_format = STATEMENT")
    with running(url, stream, "users", name="loaded") as capture:
        capture.wait_for(database)
        database.run(f"LOAD DATA INFILE '{file}' INTO TABLE users")
        error = capture.wait_for_end()
    assert "was logged as text" in str(error)


def test_a_table_that_is_added_later_counts_from_its_own_snapshot(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE first (id int PRIMARY KEY)", "CREATE TABLE second (id int PRIMARY KEY)")
    with running(url, stream, "first", name="added") as capture:
        capture.wait_for(database)
    database.run(
        "INSERT INTO second VALUES (1)", "DROP TABLE second", "CREATE TABLE second (id int PRIMARY KEY, a int)",
        "INSERT INTO second VALUES (1, 1), (2, 2)", "DELETE FROM second WHERE id = 1", "INSERT INTO first VALUES (7)",
    )  # fmt: skip
    with running(url, stream, "first", "second", name="added") as capture:
        capture.wait_for(database)
        database.run("INSERT INTO second VALUES (3, 3)")
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "second")).rows) == {'{"id":2}', '{"id":3}'}
    assert set(materialised(stream, topic_of(url, "first")).rows) == {'{"id":7}'}
    with running(url, stream, "first", name="added") as capture:  # left out for a while
        database.run("DELETE FROM second WHERE id = 2")
        capture.wait_for(database)
    with running(url, stream, "first", "second", name="added") as capture:
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "second")).rows) == {'{"id":3}'}


def test_a_stopped_snapshot_continues_with_the_next_range(url: str, stream: str, database: Database) -> None:
    database.run(
        "CREATE TABLE numbers (kind enum('z', 'a'), raw varbinary(9), at datetime(3), name varchar(20) "
        "CHARACTER SET latin1, b decimal(9,2), PRIMARY KEY (kind, raw, at, name, b))",
        "INSERT INTO numbers SELECT 1 + seq % 2, CHAR(seq % 5), '2024-01-01 00:00:00.5', CONCAT('é''', seq % 3), seq "
        "FROM seq_1_to_100",
    )
    capture = Capture(url, stream, tables=["numbers"], snapshot_rows=10, heartbeat_s=0.1, name="ranges")
    thread = threading.Thread(target=capture.run)
    thread.start()
    wait_until(lambda: sum(each.rows for each in capture.progress.tables.values()) >= 20, "some ranges are read")
    capture.close()
    thread.join()
    database.run("DELETE FROM numbers WHERE b IN (1, 99)", "UPDATE numbers SET b = b + 1000 WHERE b IN (3, 98)")
    with running(url, stream, "numbers", snapshot_rows=10, name="ranges") as second:
        second.wait_for(database)
    table = materialised(stream, topic_of(url, "numbers"))
    assert len(table.snapshot_keys) == len(set(table.snapshot_keys)) >= 98  # no range was read twice
    rows = database.run("SELECT kind, name, CAST(b AS CHAR) FROM numbers")
    assert sorted((row["kind"], row["name"], row["b"]) for row in table.rows.values()) == sorted(rows)


def test_a_second_capture_with_the_same_name_takes_over(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY)")
    with running(url, stream, "users") as first:
        first.wait_for(database)
        database.run("INSERT INTO users VALUES (1)")
        with running(url, stream, "users") as second:
            second.wait_for(database)
            database.run("INSERT INTO users VALUES (2)")
            second.wait_for(database)
            assert isinstance(first.wait_for_end(), OvertakenError)
    events = materialised(stream, topic_of(url, "users")).events
    assert [event.op for event in events] == ["c", "c"]


def test_an_idle_capture_moves_on_with_other_tables_and_new_files(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE busy (id int)")
    with running(url, stream, "quiet") as capture:
        capture.wait_for(database)
        database.run("INSERT INTO busy SELECT seq FROM seq_1_to_1000", "FLUSH BINARY LOGS")
        capture.wait_for(database)
        database.run("INSERT INTO quiet VALUES (1)")
        capture.wait_for(database)
        assert capture.capture.progress.changes == 1


def test_a_capture_survives_a_crash_of_the_database_and_notices_lost_files(stream: str) -> None:
    with MariadbServer() as server:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE crash")
            cursor.execute("CREATE TABLE crash.users (id int PRIMARY KEY)")
        url = f"{server.url}/crash"
        with running(url, stream, "users", name="crash") as capture:
            wait_until(lambda: capture.capture.progress.phase == "streaming", "it streams")
            server.kill()
            server.start()
            with contextlib.closing(Database(url, server)) as database:
                database.run("INSERT INTO users VALUES (1)")
                capture.wait_for(database)
        assert [event.op for event in materialised(stream, "crash.crash.users").events] == ["c"]
        with contextlib.closing(Database(url, server)) as database:
            wait_until(lambda: capture_status(url, None, 0.0)[0].state == "unknown", "the server notices its end")
            (status,) = capture_status(url, None, 0.0)
            assert (status.time_to_loss_s, status.limit, status.is_lost) == (None, "", False)
            database.run("SET GLOBAL binlog_expire_logs_seconds = 86400")
            with running(url, stream, "users", name="crash") as capture:
                capture.wait_for(database)
                (status,) = capture_status(url, None, 0.2)
                assert (status.name, status.state, status.time_to_loss_s) == ("crash", "reading", 86400.0)
                assert status.kept_bytes > 0
            database.run("INSERT INTO users VALUES (2)", "DELETE FROM users WHERE id = 1", "FLUSH BINARY LOGS")
            (last,) = database.run("SHOW MASTER STATUS")
            wait_until(lambda: _purged(database, last[0]), "the old files are purged")
            with pytest.raises(ChangesLostError, match=r"no longer has the binlog b\.00.*--snapshot again"):
                Capture(url, stream, tables=["users"], name="crash").run()
            with running(url, stream, "users", name="crash", snapshot="again") as capture:
                capture.wait_for(database)
            assert set(materialised(stream, "crash.crash.users").rows) == {'{"id":2}'}
            database.run("RESET MASTER", "INSERT INTO users SELECT seq FROM seq_10_to_3000")
            while database.place()[0] < last_file(stream, "crash"):
                database.run("INSERT INTO users VALUES (5)", "DELETE FROM users WHERE id = 5", "FLUSH BINARY LOGS")
            database.run("INSERT INTO users SELECT seq FROM seq_5000_to_9000")
            with pytest.raises(ChangesLostError, match="another binlog file"):
                Capture(url, stream, tables=["users"], name="crash").run()


def _purged(database: Database, file: str) -> bool:
    database.run(f"PURGE BINARY LOGS TO '{file}'")
    return len(database.run("SHOW BINARY LOGS")) == 1


def last_file(stream: str, name: str) -> int:
    """The number of the binlog file at which a capture is."""
    positions = [
        json.loads(each.value or b"") for each in records_of(stream, f"penstock.cdc.{name}") if each.key == b"position"
    ]
    return int(positions[-1]["file"].rpartition(".")[2])


@pytest.mark.parametrize(
    ("set_up", "tables", "message"),
    [
        ("CREATE TABLE t (id int)", ["t"], "has no primary key.*ADD PRIMARY KEY"),
        ("CREATE TABLE t (id int PRIMARY KEY)", ["u*"], r"no table matches 'u\*': there are"),
        ("CREATE TABLE t (id int PRIMARY KEY, u uuid)", ["t"], r"column 'u' of table \w+\.t has the type uuid"),
        ("CREATE TABLE t (id int PRIMARY KEY, i inet6)", ["t"], r"column 'i' of table \w+\.t has the type inet6"),
        ("CREATE TABLE t (id int PRIMARY KEY) WITH SYSTEM VERSIONING", ["t"], "system-versioned.*DROP SYSTEM"),
        ("CREATE TABLE t (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES t (id) ON DELETE SET NULL)", ["t"],
         "ON DELETE SET NULL.*not in the binlog"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_captured_are_refused_before_anything_starts(
    url: str, stream: str, database: Database, set_up: str, tables: list[str], message: str
) -> None:
    database.run(set_up)
    with pytest.raises(ConfigError, match=message) as refused:
        Capture(url, stream, tables=tables, name="refused").run()
    assert ("has the type" in message) == isinstance(refused.value, UnsupportedTypeError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log_bin": None}, "writes no binlog: start it with --log-bin"),
        ({"binlog_format": "MIXED"}, "SET GLOBAL binlog_format = 'ROW'"),
        ({"binlog_row_image": "MINIMAL"}, "SET GLOBAL binlog_row_image = 'FULL'"),
        ({"binlog_row_metadata": None}, "SET GLOBAL binlog_row_metadata = 'FULL'"),
        ({"binlog_ignore_db": "shop"}, "does not log changes of 'shop'"),
    ],
)
def test_a_server_that_is_not_set_up_is_refused_with_the_remedy(
    stream: str, settings: dict[str, str | None], message: str
) -> None:
    with MariadbServer(settings) as server:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match=message):
            Capture(f"{server.url}/shop", stream, tables=["t"]).run()
    with pytest.raises(SourceUnavailableError, match="is unavailable"):
        Capture(f"{server.url}/shop", stream, tables=["t"]).run()


def test_rights_passwords_and_databases_that_are_wrong_are_named(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE OR REPLACE USER reader IDENTIFIED BY 's3@:/'")
    weak = url.replace("root@", "reader:s3%40%3A%2F@")
    name = database.name
    for grant, message in (
        (None, "refuses this user or database"),
        (f"GRANT INSERT ON {name}.* TO reader", "GRANT SELECT"),
        (f"GRANT SELECT ON {name}.* TO reader", "GRANT REPLICATION SLAVE, REPLICATION CLIENT"),
        ("GRANT REPLICATION CLIENT ON *.* TO reader", "GRANT REPLICATION SLAVE, REPLICATION CLIENT"),
    ):
        if grant is not None:
            database.run(grant)
        with pytest.raises(ConfigError, match=message):
            Capture(weak, stream, tables=["t"], name="weak").run()
    database.run("GRANT REPLICATION SLAVE ON *.* TO reader")
    with running(weak, stream, "t", name="weak") as capture:
        capture.wait_for(database)
        database.run("INSERT INTO t VALUES (1)")
        capture.wait_for(database)
    assert set(materialised(stream, topic_of(url, "t")).rows) == {'{"id":1}'}
    for wrong in (weak.replace("s3", "s4"), weak.replace(name, "nowhere")):
        with pytest.raises(ConfigError, match="refuses this user or database") as refused:
            Capture(wrong, stream, tables=["t"], name="weak").run()
        assert "s4" not in str(refused.value)
    database.run("DROP USER reader")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root@127.0.0.1", "names no database"),
        ("mysql://root@127.0.0.1:x/shop", "is invalid"),
        ("mysql://root@127.0.0.1/shop?server_id=x", "server_id='x'"),
        ("mysql://root@127.0.0.1/shop?charset=latin1", "charset='latin1'"),
    ],
)
def test_wrong_urls_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Capture(url, "memory:", tables=["t"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    for module in [name for name in sys.modules if name.startswith("penstock.tables.cdc.mysql.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[mysql\]'"):
        Capture("mariadb://root@127.0.0.1/shop", "memory:", tables=["t"])


def test_options_of_postgresql_are_refused() -> None:
    with pytest.raises(ConfigError, match="only PostgreSQL has it"):
        Capture("mysql://root@127.0.0.1/shop", "memory:", tables=["t"], slot="mine")


def test_a_capture_of_another_form_or_server_is_refused(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    with running(url, stream, "t", name="same") as capture:
        capture.wait_for(database)
    with pytest.raises(ConfigError, match="writes the form 'debezium', not 'flat'"):
        Capture(url, stream, tables=["t"], name="same", format="flat").run()
    with (
        fresh_database(f"cdc_{next(_numbers)}") as other,
        contextlib.closing(Database(other)) as another,
    ):
        another.run("CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(ConfigError, match="captures 'mariadb:"):
            Capture(other, stream, tables=["t"], name="same").run()


def test_only_a_snapshot_ends_by_itself(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE users (id int PRIMARY KEY)", "INSERT INTO users SELECT seq FROM seq_1_to_25")
    with running(url, stream, "users", snapshot="only", snapshot_rows=10, name="only") as capture:
        assert capture.wait_for_end() is None
    assert len(materialised(stream, topic_of(url, "users")).rows) == 25


def test_large_values_are_captured_whole(url: str, stream: str, database: Database) -> None:
    database.run("CREATE TABLE files (id int PRIMARY KEY, body longtext)")
    with running(url, stream, "files", name="large") as capture:
        capture.wait_for(database)
        database.run("INSERT INTO files VALUES (1, REPEAT('x', 6000000)), (2, REPEAT('y', 6000000))")
        capture.wait_for(database)
    rows = materialised(stream, topic_of(url, "files")).rows
    assert [len(rows[key]["body"]) for key in sorted(rows)] == [6_000_000] * 2


def test_a_new_snapshot_that_was_asked_for_is_taken_although_the_stream_was_away(
    url: str, stream: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "COMMIT")
    with running(url, stream, "t", name="anew") as capture:
        capture.wait_for(database)
    failures = fail_first_set_up(monkeypatch)
    with running(url, stream, "t", name="anew", snapshot="again") as capture:
        capture.wait_for(database)
    assert failures == ["failed"]
    assert len(materialised(stream, topic_of(url, "t")).snapshot_keys) == 4


def test_a_binlog_without_checksums_is_read(stream: str) -> None:
    with MariadbServer({"binlog_checksum": "NONE"}) as server, fresh_database("plain", server) as url:
        with contextlib.closing(Database(url, server)) as database:
            database.run("CREATE TABLE users (id int PRIMARY KEY)")
            with running(url, stream, "users") as capture:
                capture.wait_for(database)
                database.run("INSERT INTO users VALUES (1)", "FLUSH BINARY LOGS", "SET GLOBAL binlog_checksum = CRC32")
                database.run("INSERT INTO users VALUES (2)")
                capture.wait_for(database)
            with running(url, stream, "users") as capture:
                database.run("DELETE FROM users WHERE id = 1")
                capture.wait_for(database)
        table = materialised(stream, "plain.plain.users")
        assert (set(table.rows), [event.op for event in table.events]) == ({'{"id":2}'}, ["c", "c", "d"])
