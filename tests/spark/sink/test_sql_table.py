"""SQL tables as targets: rows and the number of their batch in one transaction."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeliveryError,
    FencedError,
    OutcomeUnknownError,
    PenstockError,
    SchemaMismatchError,
)
from penstock.spark import SqlTable
from penstock.spark.sink.refused_rows import RefusedRows
from penstock.spark.sink.sql import postgres, sqlite
from penstock.spark.sink.target import Delivered, Delivery
from penstock.spark.values.undecodable import Letters
from tests.postgres import PostgresServer
from tests.seeds import seed_of
from tests.spark.sink.databases import Killed, Rows, killing


@pytest.fixture
def refused(tmp_path: Path, database: str) -> RefusedRows:
    """Dead letters of the query: for SQLite in the file of the table itself."""
    spec = database if database.startswith("sqlite:") else f"file:{tmp_path / 'letters.jsonl'}"
    return RefusedRows(Letters("memory:", spec, {}), "shop", "v2")


@pytest.fixture
def letters(refused: RefusedRows) -> Callable[[], list[ps.DeadLetter]]:
    def browse() -> list[ps.DeadLetter]:
        with contextlib.closing(ps.open_dead_letters(refused.letters.spec)) as opened:
            return list(opened.browse(ps.DeadLetterFilter()))

    return browse


def test_rows_are_added_and_a_repeated_batch_is_not(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    target = SqlTable(database, "numbers")
    frame = spark.range(10)
    target.check(frame.schema, "append")
    delivery = open_target(target)
    assert delivery.deliver(frame, 0) == Delivered(10)
    assert delivery.deliver(frame, 0) == Delivered(10, repeated=True)
    again = open_target(target)
    assert again.deliver(frame, 0) == Delivered(10, repeated=True)
    again.deliver(spark.range(10, 12), 1)
    assert rows("SELECT id FROM numbers ORDER BY id") == [(number,) for number in range(12)]
    with pytest.raises(CheckpointMismatchError):
        again.deliver(frame, 0)


def test_a_row_replaces_the_one_of_its_key_also_within_a_batch(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    target = SqlTable(database, "spend", key=["customer", "day"])
    schema = "customer string, day int, amount bigint"
    delivery = open_target(target, "update")
    delivery.deliver(spark.createDataFrame([("ann", 1, 5), ("bob", 1, 7)], schema), 0)
    later = spark.createDataFrame([("ann", 1, 6), ("ann", 2, 1), ("ann", 1, 9)], schema).coalesce(1)
    delivery.deliver(later, 1)
    assert rows("SELECT * FROM spend ORDER BY 1, 2") == [("ann", 1, 9), ("ann", 2, 1), ("bob", 1, 7)]


def test_the_changes_of_a_table_make_the_table(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery], refused: RefusedRows
) -> None:
    rng = random.Random(seed_of())
    target = SqlTable(database, "spend", key=["customer", "day"], deleted="gone")
    schema = "gone boolean, day date, customer string, amount bigint"
    model: dict[tuple[str, datetime.date], int] = {}
    delivery = open_target(target)
    for batch in range(4):
        changes = []
        for amount in range(15):
            key = rng.choice("abc"), datetime.date(2026, 1, rng.randrange(1, 4))
            gone = rng.choice([True, False, None])
            changes.append((gone, key[1], key[0], None if gone else amount))
            model.pop(key, None)
            if not gone:
                model[key] = amount
        frame = spark.createDataFrame(changes, schema).coalesce(1)
        target.check(frame.schema, "append")
        assert delivery.deliver(frame, batch) == Delivered(15)
        found = {(customer, str(day)): amount for day, customer, amount in rows("SELECT * FROM spend")}
        assert found == {(customer, str(day)): amount for (customer, day), amount in model.items()}
    with pytest.raises(DeliveryError, match="no value in 'customer'"):
        delivery.deliver(spark.createDataFrame([(True, datetime.date(2026, 1, 1), None, None)], schema), 4)
    delivery = open_target(target, refused=refused)
    only_deletions = [(True, datetime.date(2026, 1, day), who, None) for day in (1, 2, 3) for who in "abc"]
    frame = spark.createDataFrame([*only_deletions, (True, datetime.date(2026, 1, 1), None, None)], schema)
    assert delivery.deliver(frame, 4) == Delivered(9, refused=1)
    assert rows("SELECT count(*) FROM spend") == [(0,)]


def test_deletions_need_a_key_and_a_boolean_column(spark: SparkSession, database: str) -> None:
    schema = spark.createDataFrame([], "id int, gone boolean, name string").schema
    SqlTable(database, "t", key="id", deleted="gone").check(schema, "update")
    for options, mode, message in (
        ({"key": "id", "deleted": "name"}, "append", "'name' is string, and must be boolean"),
        ({"key": "id", "deleted": "op"}, "append", "no column 'op' for deletions"),
        ({"deleted": "gone"}, "append", "deletes rows by their key: set key="),
        ({"key": "gone", "deleted": "gone"}, "append", "deletes rows by their key: set key="),
        ({"key": "id", "deleted": "gone"}, "complete", "use mode append or update"),
    ):
        with pytest.raises(ConfigError, match=message):
            SqlTable(database, "t", **options).check(schema, mode)  # type: ignore[arg-type]


def test_a_table_of_keys_alone_keeps_each_once(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    delivery = open_target(SqlTable(database, "seen", key="id"))
    delivery.deliver(spark.range(3), 0)
    delivery.deliver(spark.range(5), 1)
    assert rows("SELECT count(*) FROM seen") == [(5,)]


def test_complete_mode_replaces_everything_at_once(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    delivery = open_target(SqlTable(database, "top"), "complete")
    delivery.deliver(spark.range(10), 0)
    delivery.deliver(spark.range(3), 1)
    assert rows("SELECT count(*) FROM top") == [(3,)]
    delivery.deliver(spark.range(0), 2)
    assert rows("SELECT count(*) FROM top") == [(0,)]


def test_every_type_comes_back_as_it_was(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    when = datetime.datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
    schema = (
        "t string, b boolean, i int, l bigint, d double, n decimal(20,4), day date, at timestamp, wall timestamp_ntz, "
        "raw binary, many array<int>"
    )
    row = (
        'a "quoted", comma\nline',
        True,
        -5,
        2**62,
        0.1,
        decimal.Decimal("1234567890123456.7891"),
        when.date(),
        when,
        when.replace(tzinfo=None),
        b'\x00\xff,"',
        [1, 2],
    )
    empty = ("", *[None] * 10)
    target = SqlTable(database, "types")
    frame = spark.createDataFrame([row, empty], schema)
    target.check(frame.schema, "append")
    delivery = open_target(target)
    delivery.deliver(frame, 0)
    target.check(frame.schema, "append")  # the table that it made fits
    found = rows("SELECT * FROM types ORDER BY l IS NULL")
    if database.startswith("sqlite:"):
        as_text = "2025-03-01T12:00:00.250000"
        wanted = (*row[:5], str(row[5]), "2025-03-01", f"{as_text}+00:00", as_text, row[9], "[1,2]")
        assert found == [(*wanted[:1], 1, *wanted[2:]), empty]
    else:
        assert found == [row, empty]


def test_names_are_quoted_whatever_they_are(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    name = 'x"; DROP TABLE y; --'
    frame = spark.range(2).withColumnRenamed("id", 'select "it"')
    open_target(SqlTable(database, name, key='select "it"')).deliver(frame, 0)
    assert rows('SELECT count(*) FROM "x""; DROP TABLE y; --"') == [(2,)]


@pytest.mark.parametrize("step", ["clear", "write", "set_mark"])
def test_a_driver_that_dies_inside_the_transaction_leaves_nothing_of_it(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    target = SqlTable(database, "numbers")
    first = open_target(target, "complete")
    first.deliver(spark.range(5), 0)
    killing(monkeypatch, step)
    with pytest.raises(Killed):
        first.deliver(spark.range(7), 1)
    monkeypatch.undo()
    assert rows("SELECT count(*) FROM numbers") == [(5,)]
    second = open_target(target, "complete")
    assert second.deliver(spark.range(7), 1) == Delivered(7)
    assert rows("SELECT count(*) FROM numbers") == [(7,)]


def test_an_older_run_is_fenced(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    target = SqlTable(database, "numbers")
    older = open_target(target)
    older.deliver(spark.range(5), 0)
    newer = open_target(target)
    with pytest.raises(FencedError, match="newer run"):
        older.deliver(spark.range(5, 9), 1)
    newer.deliver(spark.range(5, 9), 1)
    assert rows("SELECT count(*), min(id), max(id) FROM numbers") == [(9, 0, 8)]


def test_a_commit_that_was_not_answered_is_looked_up(
    spark: SparkSession,
    rows: Rows,
    database: str,
    open_target: Callable[..., Delivery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delivery = open_target(SqlTable(database, "numbers"))
    delivery.deliver(spark.range(1), 0)
    kind = sqlite.SqliteDatabase if database.startswith("sqlite:") else postgres.PostgresDatabase
    real: Any = kind.transaction

    def unanswered(self: Any) -> Any:
        manager = real(self)

        class Lost:
            def __enter__(self) -> Any:
                return manager.__enter__()

            def __exit__(self, *why: Any) -> None:
                monkeypatch.undo()
                manager.__exit__(*why)
                raise OutcomeUnknownError("the answer was lost")

        return Lost()

    monkeypatch.setattr(kind, "transaction", unanswered)
    assert delivery.deliver(spark.range(1, 4), 1) == Delivered(3)
    assert rows("SELECT count(*) FROM numbers") == [(4,)]


def test_a_table_that_does_not_fit_is_refused_when_the_pipeline_is_built(
    spark: SparkSession, database: str, rows: Rows
) -> None:
    rows("CREATE TABLE old (id BIGINT NOT NULL, must TEXT NOT NULL)")
    schema = spark.range(1).withColumn("name", F.lit("x")).schema
    with pytest.raises(SchemaMismatchError, match="no column 'name'"):
        SqlTable(database, "old").check(schema, "append")
    with pytest.raises(SchemaMismatchError, match="'must' is NOT NULL"):
        SqlTable(database, "old").check(spark.range(1).select(F.col("id").cast("int")).schema, "append")
    with pytest.raises(SchemaMismatchError, match=r"'must' is (TEXT|text)"):
        SqlTable(database, "old").check(
            spark.range(1).select(F.col("id").cast("int"), F.lit(1.5).alias("must")).schema, "append"
        )
    texts = spark.range(1).select(F.col("id").cast("int"), F.lit("x").alias("must")).schema
    with pytest.raises(SchemaMismatchError, match="no unique index over"):
        SqlTable(database, "old", key="id").check(texts, "append")
    SqlTable(database, "old").check(texts, "append")
    with pytest.raises(SchemaMismatchError, match="no column 'x' for the key"):
        SqlTable(database, "new", key="x").check(texts, "append")
    with pytest.raises(SchemaMismatchError, match="there is no table new"):
        SqlTable(database, "new", create=False).check(texts, "append")
    with pytest.raises(ConfigError, match="update mode"):
        SqlTable(database, "new").check(texts, "update")


def test_rows_that_the_table_refuses_are_named_and_nothing_of_their_batch_is_there(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    rows("CREATE TABLE positive (id BIGINT CHECK (id >= 0))")
    delivery = open_target(SqlTable(database, "positive"))
    with pytest.raises(DeliveryError, match="rejected the rows"):
        delivery.deliver(spark.range(-1, 5), 0)
    assert rows("SELECT count(*) FROM positive") == [(0,)]
    delivery.deliver(spark.range(5), 0)
    assert rows("SELECT count(*) FROM positive") == [(5,)]


KEYED_TABLES = pytest.mark.parametrize(
    ("table", "options", "key"),
    [
        (None, "", ["id"]),
        (None, "", ["id", "name"]),
        ("id BIGINT PRIMARY KEY, name TEXT", "", ["id"]),
        ("id INTEGER PRIMARY KEY, name TEXT", "", ["id"]),
        ("id INTEGER PRIMARY KEY, name TEXT", "", []),
        ("id INTEGER, name TEXT, PRIMARY KEY (id, name)", "", []),
        ("id INTEGER, name TEXT, PRIMARY KEY (id, name)", "", ["id", "name"]),
        ("id INTEGER, name TEXT, UNIQUE (id)", "", ["id"]),
        ("id INTEGER PRIMARY KEY, name TEXT", " WITHOUT ROWID", ["id"]),
    ],
)


@KEYED_TABLES
def test_a_row_without_its_key_is_refused_and_no_key_is_made_up_for_it(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    table: str | None,
    options: str,
    key: list[str],
) -> None:
    if table is not None:
        rows(f"CREATE TABLE named ({table}){options if database.startswith('sqlite:') else ''}")
    delivery = open_target(SqlTable(database, "named", key=key))
    delivery.deliver(spark.createDataFrame([(1, "one")], "id int, name string"), 0)
    with pytest.raises(DeliveryError, match=r"no value in 'id'|null value in column \"id\""):
        delivery.deliver(spark.createDataFrame([(2, "two"), (None, "none")], "id int, name string"), 1)
    assert rows("SELECT id, name FROM named") == [(1, "one")]


@KEYED_TABLES
def test_with_dead_letters_a_row_without_its_key_goes_there_and_the_others_are_written(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
    table: str | None,
    options: str,
    key: list[str],
) -> None:
    if table is not None:
        rows(f"CREATE TABLE named ({table}){options if database.startswith('sqlite:') else ''}")
    delivery = open_target(SqlTable(database, "named", key=key), refused=refused)
    frame = spark.createDataFrame([(2, "two"), (None, "none"), (3, "three")], "id int, name string").coalesce(1)
    assert delivery.deliver(frame, 4) == Delivered(2, refused=1)
    assert rows("SELECT id, name FROM named ORDER BY id") == [(2, "two"), (3, "three")]
    assert delivery.deliver(frame, 4) == Delivered(2, repeated=True)
    (letter,) = letters()
    assert letter.record.value == b'{"id":null,"name":"none"}'
    assert letter.error == "DeliveryError: table named: key column `id` is null"
    assert (letter.group, letter.handler, letter.handler_version) == ("shop", "query spend", "v2")
    assert dict(letter.record.headers) == {
        "penstock-query": b"shop.spend",
        "penstock-target": b"table named",
        "penstock-batch": b"4",
    }


def test_every_column_of_a_key_counts_and_every_refused_row_is_a_letter(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
) -> None:
    delivery = open_target(SqlTable(database, "spend", key=["customer", "day"]), "update", refused=refused)
    schema = "customer string, day int, amount int"
    bad: list[tuple[str | None, int | None, int]] = [(None, 1, 1), ("ann", None, 2), (None, None, 3), (None, None, 3)]
    assert delivery.deliver(spark.createDataFrame(bad, schema), 0) == Delivered(0, refused=4)
    assert delivery.deliver(spark.createDataFrame([*bad[2:3], ("ann", 1, 9)], schema), 1) == Delivered(1, refused=1)
    assert rows("SELECT * FROM spend") == [("ann", 1, 9)]
    both = "key columns `customer`, `day` are null"
    reasons = sorted(letter.error.removeprefix("DeliveryError: table spend: ") for letter in letters())
    assert reasons == ["key column `customer` is null", "key column `day` is null", both, both, both]


def test_a_letter_has_every_value_of_its_row(
    spark: SparkSession,
    database: str,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
) -> None:
    when = datetime.datetime(2025, 3, 1, 12, 0, 0, 250_000, tzinfo=datetime.UTC)
    schema = (
        "id int, t string, b boolean, d double, n decimal(20,4), day date, at timestamp, wall timestamp_ntz, "
        "raw binary, many array<int>"
    )
    row = (
        None,
        'a "quoted"',
        True,
        float("nan"),
        decimal.Decimal("1.5"),
        when.date(),
        when,
        when.replace(tzinfo=None),
        b"\xff",
        [1, 2],
    )
    open_target(SqlTable(database, "types", key="id"), refused=refused).deliver(spark.createDataFrame([row], schema), 0)
    (letter,) = letters()
    assert json.loads(letter.record.value or b"") == {
        "id": None,
        "t": 'a "quoted"',
        "b": True,
        "d": "NaN",
        "n": "1.5000",
        "day": "2025-03-01",
        "at": "2025-03-01T12:00:00.250000+00:00",
        "wall": "2025-03-01T12:00:00.250000",
        "raw": "/w==",
        "many": [1, 2],
    }


def test_a_key_that_is_no_number_is_null_in_sqlite_alone(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
) -> None:
    delivery = open_target(SqlTable(database, "measured", key="at"), refused=refused)
    delivery.deliver(spark.createDataFrame([(float("nan"),), (1.5,)], "at double"), 0)
    is_sqlite = database.startswith("sqlite:")
    assert rows("SELECT count(*) FROM measured") == [(1 if is_sqlite else 2,)]
    assert [letter.record.value for letter in letters()] == ([b'{"at":"NaN"}'] if is_sqlite else [])


@pytest.mark.parametrize(
    ("step", "guarantee"), [("write", "exactly-once"), ("set_mark", "exactly-once"), ("write", "at-least-once")]
)
def test_a_repeated_batch_has_one_letter_for_each_refused_row_in_whatever_order_it_comes(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    guarantee: Any,
) -> None:
    target = SqlTable(database, "named", key="id", guarantee=guarantee)
    given: list[tuple[int | None, str]] = [(1, "one"), (None, "a"), (None, "b"), (None, "a"), (2, "two")]
    schema = "id int, name string"
    killing(monkeypatch, step)
    with pytest.raises(Killed):
        open_target(target, refused=refused).deliver(spark.createDataFrame(given, schema).coalesce(1), 0)
    monkeypatch.undo()
    assert len(letters()) == 3, "they are there before any row of the batch counts"
    again = open_target(target, refused=refused)
    assert again.deliver(spark.createDataFrame(given[::-1], schema).repartition(3), 0) == Delivered(2, refused=3)
    assert sorted(letter.record.value or b"" for letter in letters()) == [
        b'{"id":null,"name":"a"}',
        b'{"id":null,"name":"a"}',
        b'{"id":null,"name":"b"}',
    ]
    assert rows("SELECT id, name FROM named ORDER BY id") == [(1, "one"), (2, "two")]


def test_while_the_dead_letters_cannot_be_reached_nothing_of_the_batch_is_written(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    tmp_path: Path,
) -> None:
    (tmp_path / "no-folder").write_text("")
    gone = replace(refused, letters=replace(refused.letters, spec=f"sqlite:{tmp_path}/no-folder/letters.db"))
    delivery = open_target(SqlTable(database, "named", key="id"), refused=gone)
    frame = spark.createDataFrame([(1, "one"), (None, "none")], "id int, name string")
    with pytest.raises(PenstockError, match="no-folder"):
        delivery.deliver(frame, 0)
    assert rows("SELECT * FROM named") == []


def test_in_complete_mode_a_row_that_comes_with_every_batch_is_one_letter(
    spark: SparkSession,
    database: str,
    rows: Rows,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
    letters: Callable[[], list[ps.DeadLetter]],
) -> None:
    delivery = open_target(SqlTable(database, "top", key="id"), "complete", refused=refused)
    for batch in range(3):
        frame = spark.createDataFrame([(batch, "x"), (None, "none")], "id int, name string")
        assert delivery.deliver(frame, batch) == Delivered(1, refused=1)
    assert len(letters()) == 1
    assert rows("SELECT id FROM top") == [(2,)]


def test_columns_that_an_index_of_postgresql_only_includes_are_no_part_of_the_key(
    spark: SparkSession,
    postgres_server: PostgresServer,
    open_target: Callable[..., Delivery],
    refused: RefusedRows,
) -> None:
    url = postgres_server.fresh_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE named (id INTEGER, name TEXT, PRIMARY KEY (id) INCLUDE (name))")
        delivery = open_target(SqlTable(url, "named", key="id"), refused=refused)
        assert delivery.deliver(spark.createDataFrame([(1, None)], "id int, name string"), 0) == Delivered(1)
        assert connection.execute("SELECT * FROM named").fetchall() == [(1, None)]


def test_a_key_that_the_rows_do_not_have_is_asked_for_unless_the_database_counts_it(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    rows("CREATE TABLE named (id TEXT PRIMARY KEY, name TEXT)")
    schema = spark.createDataFrame([("x",)], "name string").schema
    with pytest.raises(SchemaMismatchError, match="'id' is NOT NULL"):
        SqlTable(database, "named").check(schema, "append")
    counted = "INTEGER PRIMARY KEY" if database.startswith("sqlite:") else "BIGSERIAL PRIMARY KEY"
    rows(f"CREATE TABLE counted (id {counted}, name TEXT)")
    SqlTable(database, "counted").check(schema, "append")


def test_at_least_once_needs_no_table_of_marks(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    delivery = open_target(SqlTable(database, "numbers", guarantee="at-least-once"))  # type: ignore[arg-type]
    delivery.deliver(spark.range(5), 0)
    delivery.deliver(spark.range(5), 0)
    assert rows("SELECT count(*) FROM numbers") == [(10,)]
    with pytest.raises(Exception, match="penstock_spark_batches"):
        rows("SELECT * FROM penstock_spark_batches")


def test_a_target_does_not_show_its_password() -> None:
    assert "hunter2" not in repr(SqlTable("postgresql://me:hunter2@db/shop", "t"))


def test_what_is_no_database_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a database"):
        SqlTable("mysql://x", "t")
    with pytest.raises(ConfigError, match="is not the name of a table"):
        SqlTable("sqlite:./x.db", "a.b.c")
    with pytest.raises(ConfigError, match="names no file"):
        SqlTable("sqlite:", "t")
