"""SQLite as a target: timestamps as ISO text in UTC, decimals as text, booleans as 0 and 1."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from penstock.databases.sqlite import BUSY, REFUSED, connect, primary_code
from penstock.databases.statements import ExistingTable, affinity_of, describe_sqlite, listed, quoted, upsert_tail
from penstock.errors import ConfigError, DeliveryError, PenstockError, StoreUnavailableError
from penstock.spark.sink.sql.columns import Kind, SqlColumn, plain_values
from penstock.spark.sink.sql.database import SqlTransaction, require_keys

_TYPES: Final = {
    Kind.TEXT: "TEXT",
    Kind.BOOLEAN: "INTEGER",
    Kind.SHORT: "INTEGER",
    Kind.INTEGER: "INTEGER",
    Kind.LONG: "INTEGER",
    Kind.FLOAT: "REAL",
    Kind.DOUBLE: "REAL",
    Kind.DECIMAL: "TEXT",
    Kind.DATE: "TEXT",
    Kind.TIMESTAMP_TZ: "TEXT",
    Kind.TIMESTAMP: "TEXT",
    Kind.BYTES: "BLOB",
    Kind.JSON: "TEXT",
}
_KEPT: Final[dict[str, frozenset[str]]] = {
    "INTEGER": frozenset({"INTEGER", "NUMERIC"}),
    "REAL": frozenset({"REAL"}),
    "TEXT": frozenset({"TEXT"}),
    "BLOB": frozenset(),
}
"""For each storage type, the column affinities that store its values unchanged."""

_TEMPORAL: Final = (Kind.DATE, Kind.TIMESTAMP_TZ, Kind.TIMESTAMP)


class SqliteDatabase:
    """`SqlDatabase` for a sqlite: URL."""

    nan_is_null = True
    locks_by_inserting = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.where = f"the SQLite database {path}"

    def type_of(self, column: SqlColumn) -> str:
        return _TYPES[column.kind]

    def fits(self, column: SqlColumn, declared: str) -> bool:
        affinity = affinity_of(declared)
        if affinity == "BLOB" or (column.kind in _TEMPORAL and affinity == "NUMERIC"):
            return True  # BLOB converts nothing, and NUMERIC leaves text alone that is not a number
        return affinity in _KEPT[_TYPES[column.kind]]

    @contextmanager
    def transaction(self) -> Iterator[SqlTransaction]:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield _Transaction(self, connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OverflowError) as error:
            self.close()
            raise self._translated(error) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if not os.path.isdir(os.path.dirname(self._path)):
                raise ConfigError(f"{self.where} cannot be opened: its folder does not exist; create it")
            self._connection = connect(self._path)
        return self._connection

    def _translated(self, error: Exception) -> PenstockError:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
            return DeliveryError(f"{self.where} rejected the rows of a batch: {error}")
        if primary_code(error) in BUSY | REFUSED:
            return StoreUnavailableError(f"{self.where} is not available now: {error}")
        return ConfigError(f"{self.where} cannot store results: {error}")


class _Transaction(SqlTransaction):
    placeholder = "?"

    def __init__(self, database: SqliteDatabase, connection: sqlite3.Connection) -> None:
        super().__init__(database)
        self._connection = connection

    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        return describe_sqlite(self.execute, table)

    def write(
        self,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        places = ", ".join("?" * len(columns))
        names = listed(column.name for column in columns)
        tail = upsert_tail((column.name for column in columns), key)
        statement = f"INSERT INTO {quoted(*table)} ({names}) VALUES ({places}){tail}"
        # SQLite replaces null in an INTEGER PRIMARY KEY by a number, and accepts null in any other primary key.
        existing = self.describe(table)
        keys = {*key, *(() if existing is None else existing.primary_key)}
        for batch in batches:
            require_keys(batch, columns, keys, nan_is_null=True)
            self._connection.executemany(statement, _rows(batch, columns))

    def lock_rows(
        self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[SqlColumn], keys: pa.RecordBatch
    ) -> list[tuple[Any, ...] | None]:
        # BEGIN IMMEDIATE has locked the whole database.
        names = listed(column.name for column in columns)
        statement = f"SELECT {names} FROM {quoted(*table)} WHERE {_equal(key)}"
        found = (self.execute(statement, values) for values in _rows(keys, key))
        return [rows[0] if rows else None for rows in found]

    def delete_rows(self, table: Sequence[str], key: Sequence[SqlColumn], keys: pa.RecordBatch) -> None:
        self._connection.executemany(f"DELETE FROM {quoted(*table)} WHERE {_equal(key)}", _rows(keys, key))

    def execute(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values or ()).fetchall()


def _rows(batch: pa.RecordBatch, columns: Sequence[SqlColumn]) -> Iterator[tuple[Any, ...]]:
    values = [plain_values(batch.column(index), column.kind) for index, column in enumerate(columns)]
    return zip(*values, strict=True)


def _equal(key: Sequence[SqlColumn]) -> str:
    return " AND ".join(f"{quoted(column.name)} = ?" for column in key)
