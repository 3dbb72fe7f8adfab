"""A captured table of MariaDB is compared with its copy, and the copy is repaired."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import ConfigError
from penstock.model import Position
from penstock.streams import Connection
from penstock.tables import Capture
from penstock.tables.apply import Applier, compare
from penstock.tables.apply.comparing import same
from tests.mariadb import fresh_database
from tests.tables.apply.test_applier import query
from tests.tables.captured_mysql import Database

_numbers = itertools.count(1)
COLUMNS = (
    "name text, cents bigint unsigned, price decimal(10, 3), ratio double, small float, flag boolean, "
    "raw varbinary(9), born date, at datetime(6), seen timestamp(3) NULL, clock time(2), "
    "kind enum('a', 'b'), document json"
)
ROWS = (
    "'Ada', 9223372036854775807, 1.500, 0.1, 0.1, 1, x'00ff', '2026-01-31', '2026-01-31 10:00:00.500000', "
    "'2026-01-31 10:00:00.250', '-10:00:00.50', 'b', '{\"a\": [1, 2]}'",
    "'', 0, -0.001, -1e300, 2, 0, x'', '1000-01-01', '2026-01-31 10:00:00', '2026-01-31 10:00:00', '100:00:00', 'a', "
    "'[]'",
    ", ".join(["NULL"] * 13),
)


@pytest.fixture
def source() -> Iterator[str]:
    with fresh_database(f"compared_{next(_numbers)}") as url:
        yield url


def copied(source: str, target: str, stream: Connection, table: str) -> None:
    name = source.rpartition("/")[2]
    with Capture(source, stream, tables=[table], name=name, prefix=name, snapshot="only") as capture:
        capture.run()
    Applier(stream, f"{name}.{name}.{table}", target, table=table).run(end=Position.LATEST)


def kinds(found: Any) -> list[tuple[str, Any]]:
    return [(str(each.kind), next(iter(each.key.values()))) for each in found.drifted]


def test_drift_of_a_copy_of_mariadb_is_found_and_repaired(source: str, target: str, stream: Connection) -> None:
    with contextlib.closing(Database(source)) as database:
        database.run(f"CREATE TABLE users (id int PRIMARY KEY, {COLUMNS})")
        for number, row in enumerate(ROWS):
            database.run(f"INSERT INTO users VALUES ({number}, {row})")
    copied(source, target, stream, "users")
    found = compare(source, target, table="users", pause_s=0.0, page_rows=2)
    assert (found.rows, found.drifted) == (3, [])
    query(target, "UPDATE users SET name = 'Eve', at = '2026-01-31T10:00:00.51' WHERE id = 0")
    query(target, "DELETE FROM users WHERE id = 1")
    query(target, "INSERT INTO users (id, name) VALUES (9, 'Mallory')")
    for repair in (False, True):
        found = compare(source, target, table="users", pause_s=0.0, page_rows=2, repair=repair)
        assert kinds(found) == [("different", 0), ("missing", 1), ("extra", 9)]
        assert found.drifted[0].columns == ["name", "at"]
        assert found.is_same == repair
    assert compare(source, target, table="users", pause_s=0.0).drifted == []


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("varchar(20)", ["'abc'", "'d''e'", "'ünï'", "'10'", "''"]),
        ("varbinary(20)", ["x'00'", "x'0001'", "x'ff27'"]),
        ("decimal(20, 2)", ["0.10", "-12.00", "123456789012345678.12"]),
        ("datetime(3)", ["'2026-01-31 10:00:00.125'", "'2026-01-31 10:00:01'"]),
        ("timestamp(3)", ["'2026-01-31 10:00:00.125'", "'2026-01-31 10:00:01'"]),
        ("enum('z', 'a')", ["'a'", "'z'"]),
        ("bigint unsigned", ["0", "9223372036854775807"]),
    ],
)
def test_rows_are_found_by_keys_of_every_kind(
    source: str, target: str, stream: Connection, kind: str, keys: list[str]
) -> None:
    with contextlib.closing(Database(source)) as database:
        database.run(f"CREATE TABLE t (part int, id {kind}, note text, PRIMARY KEY (part, id))")
        for number, key in enumerate(keys):
            database.run(f"INSERT INTO t VALUES ({number % 2}, {key}, 'n')")
        copied(source, target, stream, "t")
        assert compare(source, target, table="t", pause_s=0.0, page_rows=1).drifted == []
        query(target, "UPDATE t SET note = 'other'")
        assert len(compare(source, target, table="t", pause_s=0.0, page_rows=1, repair=True).drifted) == len(keys)
        assert compare(source, target, table="t", pause_s=0.0).drifted == []
        database.run(f"DELETE FROM t WHERE id = {keys[0]}")
        found = compare(source, target, table="t", pause_s=0.0, repair=True)
        assert [str(each.kind) for each in found.drifted] == ["extra"]
    assert len(query(target, "SELECT 1 FROM t")) == len(keys) - 1


def test_keys_that_only_a_collation_takes_for_the_same_are_others(source: str, target: str, stream: Connection) -> None:
    with contextlib.closing(Database(source)) as database:
        database.run("CREATE TABLE t (id varchar(20) PRIMARY KEY, note text)", "INSERT INTO t VALUES ('Ada', 'n')")
    copied(source, target, stream, "t")
    query(target, "UPDATE t SET id = 'ADA'")
    found = compare(source, target, table="t", pause_s=0.0, repair=True)
    assert sorted(kinds(found)) == [("extra", "ADA"), ("missing", "Ada")]
    assert query(target, "SELECT id FROM t") == [("Ada",)]


def test_what_cannot_be_compared_is_refused(source: str, target: str) -> None:
    with contextlib.closing(Database(source)) as database:
        database.run("CREATE TABLE t (id float PRIMARY KEY)")
    with pytest.raises(ConfigError, match="can only be the source"):
        compare(target, source, table="t")
    with pytest.raises(ConfigError, match="key column 'id' of the type float"):
        compare(source, target, table="t")
    with pytest.raises(ConfigError, match="no table matches 'nowhere'"):
        compare(source, target, table="nowhere")


def test_the_command_compares_mariadb(source: str, target: str, stream: Connection) -> None:
    with contextlib.closing(Database(source)) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    copied(source, target, stream, "t")
    query(target, "DELETE FROM t WHERE id = 2")
    done = CliRunner().invoke(app, ["cdc", "compare", source, target, "--table", "t", "--pause", "0s", "--json"])
    assert done.exit_code == 1
    assert [each["kind"] for each in json.loads(done.stdout)["drifted"]] == ["missing"]


@pytest.mark.parametrize(
    ("ours", "theirs", "is_same"),
    [
        ("2026-01-31T10:00:00.500000", "2026-01-31T10:00:00.5", True),
        ("2026-01-31T10:00:00.000Z", "2026-01-31T10:00:00Z", True),
        ("-10:00:00.50", "-10:00:00.5", True),
        ("2026-01-31T10:00:00.5", "2026-01-31T10:00:00.51", False),
        ("2026-01-31T10:00:00.5Z", "2026-01-31T10:00:00.5", False),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ("{1", "{2", False),
        ("1.50", "1.5", False),
    ],
)
def test_times_and_json_are_the_same_however_they_are_written(ours: str, theirs: str, is_same: bool) -> None:
    assert same(ours, theirs) is is_same
