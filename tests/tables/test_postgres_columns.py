"""Rows of a snapshot are converted by column, with the same result as one by one."""

from __future__ import annotations

import random
from pathlib import Path

import psycopg
import pytest

import penstock
from penstock.tables import Capture
from penstock.tables.cdc.postgres import snapshot
from penstock.tables.cdc.postgres.snapshot import copied, copied_columns
from penstock.tables.cdc.postgres.values import Converter, TypeCatalog, column_json
from tests.postgres import shared_postgres
from tests.seeds import seed_of
from tests.tables.captured import fresh_database, random_text

TYPES = ("int8", "float8", "bool", "bytea", "text", "numeric", "date", "timestamp", "timestamptz", "timetz", "text[]")
VALUES: dict[str, list[str]] = {
    "int8": ["0", "-5", "9223372036854775807"],
    "float8": ["0.5", "1e300", "NaN", "-Infinity"],
    "bool": ["true", "false"],
    "bytea": [r"\x", r"\x00ff0a09"],
    "text": ["", "plain", 'a "quoted" \\ word', "tab\tand\nline", "\\N", "N", "ünï", "\x7f", "\x01"],
    "numeric": ["1.50", "NaN", "-0.00001"],
    "date": ["2026-01-31", "infinity", "0044-03-15 BC"],
    "timestamp": ["2026-01-31 10:00:00", "2026-01-31 10:00:00.5", "infinity", "0044-03-15 10:00:00 BC"],
    "timestamptz": ["2026-01-31 10:00:00+02", "-infinity", "0044-03-15 10:00:00+00 BC"],
    "timetz": ["10:00:00+02", "10:00:00.25-03:30"],
    "text[]": ["{}", '{a,NULL,"b c"}'],
}


def converters() -> list[Converter]:
    types = TypeCatalog()
    with psycopg.connect(shared_postgres().url) as database:
        query = "SELECT typname, oid FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace"
        found: dict[str, int] = dict(database.execute(query).fetchall())
        oids = [found["_text" if each == "text[]" else each] for each in TYPES]
        return [types.converter(oid, "t", name, database) for oid, name in zip(oids, TYPES, strict=True)]


@pytest.mark.parametrize("at_once", [1, 7, 2_000])
def test_columns_have_the_json_of_their_values(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(snapshot, "_AT_ONCE", at_once)
    chance = random.Random(seed_of())
    rows = [[chance.choice([*VALUES[kind], *VALUES[kind], None]) for kind in TYPES] for _ in range(100)]
    rows += [[VALUES[kind][0] for kind in TYPES] for _ in range(20)]  # nothing to escape, no NULL
    for row in rows[:20]:
        row[4] = random_text(chance)
    convert = converters()
    with psycopg.connect(shared_postgres().url) as database:
        database.execute("SET TimeZone = 'UTC'")
        columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(TYPES))
        database.execute(f"CREATE TEMP TABLE t (n serial, {columns})".encode())
        marks = ", ".join(f"%s::{kind}" for kind in TYPES)
        names = ", ".join(f"c{place}" for place in range(len(TYPES)))
        for row in rows:
            database.execute(f"INSERT INTO t ({names}) VALUES ({marks})".encode(), row)
        query = f"SELECT {names} FROM t ORDER BY n"
        one_by_one = [
            [b"null" if text is None else call(text) for text, call in zip(row, convert, strict=True)]
            for row in copied(database, query)
        ]
        by_column: list[tuple[bytes, ...]] = []
        for block in copied_columns(database, query, len(TYPES)):
            converted = [column_json(texts, call) for texts, call in zip(block, convert, strict=True)]
            by_column += zip(*converted, strict=True)
    assert len(one_by_one) == len(rows)
    assert [list(row) for row in by_column] == one_by_one


def test_a_copy_that_fails_or_is_left_in_the_middle_leaves_the_connection_usable() -> None:
    with psycopg.connect(shared_postgres().url, autocommit=True) as database:
        with pytest.raises(psycopg.errors.UndefinedTable, match="nowhere"):
            list(copied(database, "SELECT * FROM nowhere"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(copied(database, "SELECT 1 / (5000 - n) FROM generate_series(1, 10000) n"))
        for row in copied(database, "SELECT n FROM generate_series(1, 1000000) n"):
            assert row == [b"1"]
            break
        assert database.execute("SELECT 7").fetchone() == (7,)


def test_captured_records_take_a_fraction_of_the_disk(tmp_path: Path) -> None:
    with fresh_database() as url, psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        database.execute("INSERT INTO users SELECT n, 'user ' || n FROM generate_series(1, 2000) n")
        stream = f"log:{tmp_path / 'log'}"
        with penstock.connect(stream) as connection:
            Capture(url, stream, tables=["users"], name="small", snapshot="only", prefix="p").run()
            values = [record.value or b"" for record in connection.read("p.public.users")]
    assert len(values) == 2000
    stored = sum(each.stat().st_size for each in (tmp_path / "log").rglob("*.log") if "users" in str(each))
    assert 0 < stored < sum(map(len, values)) / 3
