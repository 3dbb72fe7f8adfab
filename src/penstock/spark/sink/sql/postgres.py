"""PostgreSQL as a target: rows are loaded by COPY, by way of a temporary table if they have a key."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.databases.postgres import PostgresConnection, PostgresPool, psycopg
from penstock.databases.statements import ExistingTable, describe_postgres, listed, quoted, upsert_tail
from penstock.errors import DeliveryError, PenstockError
from penstock.spark.sink.sql.columns import Kind, SqlColumn
from penstock.spark.sink.sql.database import MARKS, POSITIONS, SqlTransaction, require_keys

_STAGE: Final = "penstock_spark_stage"
_KEYS: Final = "penstock_spark_keys"
_ROW: Final = "penstock_row"
_CSV: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
"""COPY reads an empty field without quotes as null, and one in quotes as empty text."""

_TYPES: Final = {
    Kind.TEXT: "text",
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "smallint",
    Kind.INTEGER: "integer",
    Kind.LONG: "bigint",
    Kind.FLOAT: "real",
    Kind.DOUBLE: "double precision",
    Kind.DATE: "date",
    Kind.TIMESTAMP_TZ: "timestamp with time zone",
    Kind.TIMESTAMP: "timestamp without time zone",
    Kind.BYTES: "bytea",
    Kind.JSON: "jsonb",
}
_ALSO: Final[dict[Kind, frozenset[str]]] = {
    Kind.TEXT: frozenset({"character varying", "character", "citext", "uuid", "json", "jsonb"}),
    Kind.SHORT: frozenset({"integer", "bigint", "numeric"}),
    Kind.INTEGER: frozenset({"bigint", "numeric"}),
    Kind.LONG: frozenset({"numeric"}),
    Kind.FLOAT: frozenset({"double precision"}),
    Kind.DECIMAL: frozenset({"numeric"}),
    Kind.JSON: frozenset({"json", "text"}),
}


class _Pool(PostgresPool[PostgresConnection]):
    """Spark delivers one batch of a query at a time, from varying threads, so one connection is enough."""

    def translated(self, error: psycopg.Error) -> PenstockError:
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            return DeliveryError(f"{self.where} rejected the rows of a batch: {_text(error)}")
        return super().translated(error)


class PostgresDatabase:
    """`SqlDatabase` for a postgresql:// URL."""

    nan_is_null = False
    locks_by_inserting = True

    def __init__(self, url: str) -> None:
        self._pool = _Pool(url, "tables of results", size=1)
        self.where = self._pool.where

    def type_of(self, column: SqlColumn) -> str:
        if column.kind is Kind.DECIMAL:
            return f"numeric({column.precision},{column.scale})"
        return _TYPES[column.kind]

    def fits(self, column: SqlColumn, declared: str) -> bool:
        base = declared.partition("(")[0]
        if column.kind is Kind.DECIMAL:
            return base == "numeric" and column.fits_numeric(declared)
        if base != declared and base in ("numeric", "timestamp", "timestamp with time zone"):
            return False  # its precision is limited
        return base == _TYPES[column.kind] or base in _ALSO.get(column.kind, ())

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        with self._pool.transaction() as connection:
            yield _Transaction(self, connection)

    def close(self) -> None:
        self._pool.close()


class _Transaction(SqlTransaction):
    placeholder = "%s"
    row_lock = " FOR UPDATE"

    def __init__(self, database: PostgresDatabase, connection: PostgresConnection) -> None:
        super().__init__(database)
        self._connection = connection

    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        return describe_postgres(self.execute, table)

    def create_marks(self) -> None:
        self._lock_name(MARKS)
        super().create_marks()

    def has_positions(self, query: str) -> bool:
        if self.describe((POSITIONS,)) is None:
            return False
        return bool(self.execute(f"SELECT 1 FROM {POSITIONS} WHERE query = %s LIMIT 1", (query,)))

    def create(self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[str]) -> None:
        self._lock_name(quoted(*table))
        super().create(table, columns, key)

    def write(
        self,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        names = listed(column.name for column in columns)
        if not key:
            self._copy(quoted(*table), columns, batches)
            return
        self._stage(_STAGE, table, columns, batches, key)
        self.execute(
            f"INSERT INTO {quoted(*table)} ({names}) SELECT DISTINCT ON ({listed(key)}) {names} FROM {_STAGE} "
            f"ORDER BY {listed(key)}, {_ROW} DESC{upsert_tail((column.name for column in columns), key)}"
        )

    def lock_rows(
        self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[SqlColumn], keys: pa.RecordBatch
    ) -> list[tuple[Any, ...] | None]:
        self._stage(_KEYS, table, key, [keys], [column.name for column in key])
        names = listed(column.name for column in key)
        first = quoted(key[0].name)
        # A row that exists is locked although the condition excludes it from the update.
        missing = self.execute(
            f"INSERT INTO {quoted(*table)} ({names}) SELECT {names} FROM {_KEYS} ORDER BY {names} "
            f"ON CONFLICT ({names}) DO UPDATE SET {first} = excluded.{first} WHERE false RETURNING {names}"
        )
        found: list[tuple[Any, ...] | None] = [None] * keys.num_rows
        is_missing = set(missing).__contains__
        theirs = ", ".join(f"found.{quoted(column.name)}" for column in (*key, *columns))
        rows = self.execute(
            f"SELECT wanted.{_ROW}, {theirs} FROM {_KEYS} wanted JOIN {quoted(*table)} found ON {_equal(key)}"
        )
        for number, *cells in rows:
            if not is_missing(tuple(cells[: len(key)])):
                found[number - 1] = tuple(cells[len(key) :])
        self.execute(f"DROP TABLE {_KEYS}")
        return found

    def delete_rows(self, table: Sequence[str], key: Sequence[SqlColumn], keys: pa.RecordBatch) -> None:
        self._stage(_KEYS, table, key, [keys], [column.name for column in key])
        self.execute(f"DELETE FROM {quoted(*table)} found USING {_KEYS} wanted WHERE {_equal(key)}")
        self.execute(f"DROP TABLE {_KEYS}")

    def _stage(
        self,
        into: str,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        batches: Iterable[pa.RecordBatch],
        key: Sequence[str],
    ) -> None:
        """Load rows into a temporary table, with their number from 1."""
        names = listed(column.name for column in columns)
        self.execute(
            f"CREATE TEMPORARY TABLE {into} ON COMMIT DROP AS SELECT {names} FROM {quoted(*table)} WITH NO DATA"
        )
        self.execute(f"ALTER TABLE {into} ADD COLUMN {_ROW} bigserial")
        self._copy(into, columns, batches, key)

    def _lock_name(self, table: str) -> None:
        """Two transactions that create a table at the same time would both find it missing."""
        self.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (table,))

    def _copy(
        self, into: str, columns: Sequence[SqlColumn], batches: Iterable[pa.RecordBatch], key: Sequence[str] = ()
    ) -> None:
        names = listed(column.name for column in columns)
        statement = f"COPY {into} ({names}) FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8')"
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for batch in batches:
                require_keys(batch, columns, key)
                buffer = io.BytesIO()
                pyarrow.csv.write_csv(_as_text(batch), buffer, _CSV)
                copy.write(buffer.getvalue())

    def execute(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description is not None else []


def _equal(key: Sequence[SqlColumn]) -> str:
    return " AND ".join(f"found.{quoted(column.name)} = wanted.{quoted(column.name)}" for column in key)


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with bytes and timestamps as text that PostgreSQL can parse."""
    arrays = []
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            column = pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()])
            column = column.cast(pa.string())
        elif pa.types.is_timestamp(column.type):
            zone = "Z" if column.type.tz is not None else ""
            moments = column.cast(pa.timestamp("us", "UTC" if zone else None))
            column = pc.strftime(moments, f"%Y-%m-%dT%H:%M:%S{zone}")
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())
