"""SQLite as a place for results: times as ISO text in UTC, decimal numbers as text, truth values as 0 and 1."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, DeliveryError, PenstockError, StoreUnavailableError
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

_BUSY_S: Final = 30.0
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
    Kind.MOMENT: "TEXT",
    Kind.WALL_TIME: "TEXT",
    Kind.BYTES: "BLOB",
    Kind.JSON: "TEXT",
}
_KEPT: Final[dict[str, frozenset[str]]] = {
    "INTEGER": frozenset({"INTEGER", "NUMERIC"}),
    "REAL": frozenset({"REAL"}),
    "TEXT": frozenset({"TEXT"}),
    "BLOB": frozenset(),
}
"""Which affinities keep what is stored as this: those of other columns would change it."""

_TEMPORAL: Final = (Kind.DATE, Kind.MOMENT, Kind.WALL_TIME)


class SqliteDatabase:
    """`SqlDatabase` for a sqlite: URL."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self.where = f"the SQLite database {path}"

    def type_of(self, column: SqlColumn) -> str:
        return _TYPES[column.kind]

    def fits(self, column: SqlColumn, declared: str) -> bool:
        affinity = affinity_of(declared)
        if affinity == "BLOB" or (column.kind in _TEMPORAL and affinity == "NUMERIC"):
            return True  # it keeps whatever comes; and the text of a time is no number, so NUMERIC leaves it alone
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
                raise ConfigError(f"{self.where} cannot be opened: there is no folder for it; create it")
            # Batches come from whichever thread Spark calls; they take turns.
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
        return self._connection

    def _translated(self, error: Exception) -> PenstockError:
        if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | OverflowError):
            return DeliveryError(f"{self.where} does not take the rows of a batch: {error}")
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN")):
            return StoreUnavailableError(f"{self.where} refused for now: {error}")
        return ConfigError(f"{self.where} does not do what a table for results needs: {error}")


class _Transaction:
    def __init__(self, database: SqliteDatabase, connection: sqlite3.Connection) -> None:
        self._database = database
        self._connection = connection

    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        *schema, name = table
        where = f"{quoted(*schema)}." if schema else ""
        rows = self._connection.execute(f"PRAGMA {where}table_info({quoted(name)})").fetchall()
        if not rows:
            return None
        columns = {
            row[1]: ExistingColumn(row[1], row[2], bool(row[3]) and row[4] is None and not row[5]) for row in rows
        }
        unique = {frozenset(row[1] for row in rows if row[5])}
        for _, index, is_unique, _, is_partial in self._connection.execute(
            f"PRAGMA {where}index_list({quoted(name)})"
        ).fetchall():
            if is_unique and not is_partial:
                parts = self._connection.execute(f"PRAGMA {where}index_info({quoted(index)})").fetchall()
                if all(part[2] is not None for part in parts):  # else it is one over an expression
                    unique.add(frozenset(part[2] for part in parts))
        return ExistingTable(columns, frozenset(unique))

    def create(self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[str]) -> None:
        # A primary key of SQLite takes nulls, each of them another key, unless it is told not to.
        parts = [
            f"{quoted(column.name)} {self._database.type_of(column)}{' NOT NULL' if column.name in key else ''}"
            for column in columns
        ]
        if key:
            parts.append(f"PRIMARY KEY ({listed(key)})")
        self._connection.execute(f"CREATE TABLE {quoted(*table)} ({', '.join(parts)})")

    def create_marks(self) -> None:
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (query TEXT PRIMARY KEY, run TEXT NOT NULL, epoch INTEGER NOT NULL, "
            "batch INTEGER NOT NULL, row_count INTEGER NOT NULL)"
        )

    def take_over(self, query: str, run: str) -> SqlMark:
        rows = self._connection.execute(
            f"INSERT INTO {MARKS} VALUES (?, ?, 1, -1, 0) ON CONFLICT (query) DO UPDATE "
            "SET run = excluded.run, epoch = epoch + 1 RETURNING run, batch, row_count",
            (query, run),
        ).fetchall()
        return SqlMark(*rows[0])

    def mark(self, query: str) -> SqlMark | None:
        rows = self._connection.execute(
            f"SELECT run, batch, row_count FROM {MARKS} WHERE query = ?", (query,)
        ).fetchall()
        return SqlMark(*rows[0]) if rows else None

    def set_mark(self, query: str, mark: SqlMark) -> None:
        self._connection.execute(
            f"UPDATE {MARKS} SET batch = ?, row_count = ? WHERE query = ?", (mark.batch, mark.rows, query)
        )

    def clear(self, table: Sequence[str]) -> None:
        self._connection.execute(f"DELETE FROM {quoted(*table)}")

    def write(
        self,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        places = ", ".join("?" * len(columns))
        names = listed(column.name for column in columns)
        statement = f"INSERT INTO {quoted(*table)} ({names}) VALUES ({places}){upsert_tail(columns, key)}"
        for batch in batches:
            values = [_values(batch.column(index), column.kind) for index, column in enumerate(columns)]
            self._connection.executemany(statement, zip(*values, strict=True))


def affinity_of(declared: str) -> str:
    """What SQLite makes of the type that a column was declared with, by its own rules, in their order."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if any(part in text for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not text or "BLOB" in text:
        return "BLOB"
    return "REAL" if any(part in text for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _values(column: pa.Array, kind: Kind) -> list[Any]:
    if kind is Kind.MOMENT:
        column = pc.strftime(column.cast(pa.timestamp("us", "UTC")), "%Y-%m-%dT%H:%M:%S+00:00")
    elif kind is Kind.WALL_TIME:
        column = pc.strftime(column, "%Y-%m-%dT%H:%M:%S")
    elif kind in (Kind.DATE, Kind.DECIMAL):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return values
