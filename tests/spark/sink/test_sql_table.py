"""SQL tables as targets: rows and the number of their batch in one transaction."""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.errors import (
    CheckpointMismatchError,
    ConfigError,
    DeliveryError,
    FencedError,
    OutcomeUnknownError,
    SchemaMismatchError,
)
from penstock.spark.sink import SqlTable
from penstock.spark.sink.sql import postgres, sqlite
from penstock.spark.targets import Delivered, Delivery, QueryIdentity, Target
from tests.postgres import PostgresServer, shared_postgres

Rows = Callable[[str], list[tuple[Any, ...]]]


class Killed(BaseException):
    """Stands for the end of the driver's process."""


@pytest.fixture(scope="module")
def postgres_server() -> PostgresServer:
    return shared_postgres()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'results.db'}"
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.fresh_database()


@pytest.fixture
def rows(database: str) -> Iterator[Rows]:
    """Asks the database, as somebody else would."""
    connection: Any
    if database.startswith("sqlite:"):
        connection = sqlite3.connect(database.removeprefix("sqlite:"), isolation_level=None)
    else:
        connection = psycopg.connect(database, autocommit=True)

    def ask(statement: str) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    yield ask
    connection.close()


@pytest.fixture
def open_target(identity: QueryIdentity) -> Iterator[Callable[..., Delivery]]:
    opened: list[Delivery] = []

    def open_one(target: Target, mode: Any = "append") -> Delivery:
        opened.append(target.open(replace(identity, mode=mode)))
        return opened[-1]

    yield open_one
    for delivery in opened:
        delivery.close()


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
    for module in (postgres, sqlite):
        real = getattr(module._Transaction, step)

        def die(self: Any, *given: Any, real: Any = real) -> None:
            real(self, *given)
            raise Killed

        monkeypatch.setattr(module._Transaction, step, die)
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
    with pytest.raises(SchemaMismatchError, match="'must' takes no null"):
        SqlTable(database, "old").check(spark.range(1).select(F.col("id").cast("int")).schema, "append")
    with pytest.raises(SchemaMismatchError, match=r"'must' is (TEXT|text)"):
        SqlTable(database, "old").check(
            spark.range(1).select(F.col("id").cast("int"), F.lit(1.5).alias("must")).schema, "append"
        )
    texts = spark.range(1).select(F.col("id").cast("int"), F.lit("x").alias("must")).schema
    with pytest.raises(SchemaMismatchError, match="no unique index over"):
        SqlTable(database, "old", key="id").check(texts, "append")
    SqlTable(database, "old").check(texts, "append")
    with pytest.raises(SchemaMismatchError, match="no column 'x' for its key"):
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
    with pytest.raises(DeliveryError, match="does not take the rows"):
        delivery.deliver(spark.range(-1, 5), 0)
    assert rows("SELECT count(*) FROM positive") == [(0,)]
    delivery.deliver(spark.range(5), 0)
    assert rows("SELECT count(*) FROM positive") == [(5,)]


def test_at_least_once_needs_no_table_of_marks(
    spark: SparkSession, database: str, rows: Rows, open_target: Callable[..., Delivery]
) -> None:
    delivery = open_target(SqlTable(database, "numbers", guarantee="at-least-once"))  # type: ignore[arg-type]
    delivery.deliver(spark.range(5), 0)
    delivery.deliver(spark.range(5), 0)
    assert rows("SELECT count(*) FROM numbers") == [(10,)]
    with pytest.raises(Exception, match="penstock_spark_batches"):
        rows("SELECT * FROM penstock_spark_batches")


def test_what_is_no_database_is_refused() -> None:
    with pytest.raises(ConfigError, match="no database"):
        SqlTable("mysql://x", "t")
    with pytest.raises(ConfigError, match="no name of a table"):
        SqlTable("sqlite:./x.db", "a.b.c")
    with pytest.raises(ConfigError, match="names no file"):
        SqlTable("sqlite:", "t")
