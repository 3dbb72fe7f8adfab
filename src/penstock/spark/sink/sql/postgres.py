"""PostgreSQL as a place for results: rows come by COPY, into a temporary table first where they have a key."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.errors import (
    ConfigError,
    DeliveryError,
    MissingExtraError,
    OutcomeUnknownError,
    PenstockError,
    StoreUnavailableError,
)
from penstock.spark.sink.sql.columns import Kind, SqlColumn
from penstock.spark.sink.sql.database import (
    MARKS,
    ExistingColumn,
    ExistingTable,
    SqlMark,
    SqlTransaction,
    listed,
    quoted,
    upsert_tail,
)

try:
    import psycopg
    import psycopg.conninfo
except ImportError as error:
    raise MissingExtraError("a table in PostgreSQL", "postgres") from error

_SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "penstock",
}
"""Where the URL says nothing else: a server that has gone must be noticed, also when it says nothing."""

_STAGE: Final = "penstock_spark_stage"
_ROW: Final = "penstock_row"
_CSV: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
"""Text in quotes, null as nothing at all: so that both are told apart, as COPY does."""

_TYPES: Final = {
    Kind.TEXT: "text",
    Kind.BOOLEAN: "boolean",
    Kind.SHORT: "smallint",
    Kind.INTEGER: "integer",
    Kind.LONG: "bigint",
    Kind.FLOAT: "real",
    Kind.DOUBLE: "double precision",
    Kind.DATE: "date",
    Kind.MOMENT: "timestamp with time zone",
    Kind.WALL_TIME: "timestamp without time zone",
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


class PostgresDatabase:
    """`SqlDatabase` for a postgresql:// URL."""

    def __init__(self, url: str) -> None:
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"a PostgreSQL URL cannot be understood: {error}") from error
        self._settings: dict[str, Any] = {**_SETTINGS, **given}
        self._connection: psycopg.Connection[Any] | None = None
        self.where = (
            f"the PostgreSQL database {given.get('dbname') or 'of the user'} at {given.get('host') or 'localhost'}"
        )

    def type_of(self, column: SqlColumn) -> str:
        if column.kind is Kind.DECIMAL:
            return f"numeric({column.precision},{column.scale})"
        return _TYPES[column.kind]

    def fits(self, column: SqlColumn, declared: str) -> bool:
        base = declared.partition("(")[0]
        if column.kind is Kind.DECIMAL:
            return base == "numeric" and column.fits_numeric(declared)
        if base != declared and base in ("numeric", "timestamp", "timestamp with time zone"):
            return False  # fewer digits than the values may have
        return base == _TYPES[column.kind] or base in _ALSO.get(column.kind, ())

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        connection = self._connected()
        is_ending = False
        try:
            yield _Transaction(self, connection)
            is_ending = True
            connection.commit()
        except BaseException as error:
            if isinstance(error, psycopg.Error):
                lost = connection.closed or connection.broken
                self._give_up(connection)
                if is_ending and lost:
                    raise OutcomeUnknownError(
                        f"{self.where} was lost while a batch was being committed: {_text(error)}"
                    ) from error
                raise self._translated(error) from error
            self._give_up(connection)
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            try:
                self._connection = psycopg.connect(**self._settings)
            except psycopg.Error as error:
                raise self._translated(error) from error
        return self._connection

    def _give_up(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.rollback()
        except psycopg.Error:  # it is lost, and the server ends the transaction by itself
            self.close()

    def _translated(self, error: psycopg.Error) -> PenstockError:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
            return StoreUnavailableError(f"{self.where} cannot be reached, or refused for now: {_text(error)}")
        if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
            return DeliveryError(f"{self.where} does not take the rows of a batch: {_text(error)}")
        return ConfigError(f"{self.where} does not do what a table for results needs: {_text(error)}")


class _Transaction:
    def __init__(self, database: PostgresDatabase, connection: psycopg.Connection[Any]) -> None:
        self._database = database
        self._connection = connection

    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        name = quoted(*table)
        found = self._rows("SELECT to_regclass(%s)::oid", (name,))
        if found[0][0] is None:
            return None
        columns = self._rows(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND attidentity = '' "
            "FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (name,),
        )
        unique = self._rows(
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            "AND a.attnum = ANY(i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL "
            "AND i.indexprs IS NULL AND i.indisvalid GROUP BY i.indexrelid",
            (name,),
        )
        return ExistingTable(
            {column: ExistingColumn(column, declared, needed) for column, declared, needed in columns},
            frozenset(frozenset(names) for (names,) in unique),
        )

    def create(self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[str]) -> None:
        parts = [f"{quoted(column.name)} {self._database.type_of(column)}" for column in columns]
        if key:
            parts.append(f"PRIMARY KEY ({listed(key)})")
        self._run(f"CREATE TABLE IF NOT EXISTS {quoted(*table)} ({', '.join(parts)})")

    def create_marks(self) -> None:
        # Two who create one table at the same time both find that it is not there; so they take turns.
        self._run("SELECT pg_advisory_xact_lock(hashtext(%s))", (MARKS,))
        self._run(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (query text PRIMARY KEY, run text NOT NULL, epoch bigint NOT NULL, "
            "batch bigint NOT NULL, row_count bigint NOT NULL)"
        )

    def take_over(self, query: str, run: str) -> SqlMark:
        rows = self._rows(
            f"INSERT INTO {MARKS} AS mark VALUES (%s, %s, 1, -1, 0) ON CONFLICT (query) DO UPDATE "
            "SET run = excluded.run, epoch = mark.epoch + 1 RETURNING run, batch, row_count",
            (query, run),
        )
        return SqlMark(*rows[0])

    def mark(self, query: str) -> SqlMark | None:
        rows = self._rows(f"SELECT run, batch, row_count FROM {MARKS} WHERE query = %s FOR UPDATE", (query,))
        return SqlMark(*rows[0]) if rows else None

    def set_mark(self, query: str, mark: SqlMark) -> None:
        self._run(f"UPDATE {MARKS} SET batch = %s, row_count = %s WHERE query = %s", (mark.batch, mark.rows, query))

    def clear(self, table: Sequence[str]) -> None:
        self._run(f"DELETE FROM {quoted(*table)}")

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
        self._run(
            f"CREATE TEMPORARY TABLE {_STAGE} ON COMMIT DROP AS SELECT {names} FROM {quoted(*table)} WITH NO DATA"
        )
        self._run(f"ALTER TABLE {_STAGE} ADD COLUMN {_ROW} bigserial")
        self._copy(_STAGE, columns, batches)
        self._run(
            f"INSERT INTO {quoted(*table)} ({names}) SELECT DISTINCT ON ({listed(key)}) {names} FROM {_STAGE} "
            f"ORDER BY {listed(key)}, {_ROW} DESC{upsert_tail(columns, key)}"
        )

    def _copy(self, into: str, columns: Sequence[SqlColumn], batches: Iterable[pa.RecordBatch]) -> None:
        names = listed(column.name for column in columns)
        statement = f"COPY {into} ({names}) FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8')"
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for batch in batches:
                buffer = io.BytesIO()
                pyarrow.csv.write_csv(_as_text(batch), buffer, _CSV)
                copy.write(buffer.getvalue())

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            return cursor.execute(statement.encode(), values).fetchall()

    def _run(self, statement: str, values: Sequence[Any] | None = None) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.encode(), values)


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What Arrow writes otherwise than PostgreSQL reads, in a form that both know."""
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
