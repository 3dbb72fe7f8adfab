"""What a capture of MariaDB writes, what it refuses, and where it continues."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.mariadb import fresh_database
from tests.servers import Penstock
from tests.tables.captured import materialised, records_of
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
