"""The operations on a database that the delivery needs, with the statements that both databases share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.databases.statements import ExistingTable, listed, quoted
from penstock.errors import DeliveryError
from penstock.spark.sink.sql.columns import SqlColumn

MARKS: Final = "penstock_spark_batches"
"""The table with the last delivered batch of each query, and the run that may deliver the next one."""

POSITIONS: Final = "penstock_spark_positions"
"""The table with how far each query in real-time mode has written the rows of each partition that it reads."""


@dataclass(frozen=True, slots=True)
class SqlMark:
    """The last delivery to one target of one query."""

    run: str
    batch: int
    rows: int


class SqlDatabase(Protocol):
    """A database. It connects on first use, and again after a lost connection."""

    @property
    def where(self) -> str:
        """Its name in messages, without passwords."""

    @property
    def nan_is_null(self) -> bool:
        """Whether it stores NaN as null."""

    @property
    def locks_by_inserting(self) -> bool:
        """Whether `SqlTransaction.lock_rows` inserts rows of missing keys, with nothing else in them."""

    def fits(self, column: SqlColumn, declared: str) -> bool:
        """Whether a column of this declared type stores every value of `column` unchanged."""

    def type_of(self, column: SqlColumn) -> str:
        """The type of a column in a table that is created."""

    def transaction(self) -> AbstractContextManager[SqlTransaction]:
        """Commit at the end of the block, or roll back after an error.

        Raises StoreUnavailableError if the database cannot be reached or is busy, OutcomeUnknownError if the connection
        was lost during the commit, DeliveryError if it rejects the rows, ConfigError for other errors.
        """

    def close(self) -> None: ...


class SqlTransaction(ABC):
    """An open transaction."""

    placeholder: ClassVar[str]
    row_lock: ClassVar[str] = ""
    """What a SELECT needs at its end to lock its rows until the transaction ends."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    @abstractmethod
    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        """The table of this name; None if it does not exist."""

    @abstractmethod
    def write(
        self,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        """Insert rows in order. With a key, a row replaces the row with the same key, also within these rows.

        Raises DeliveryError for a row with null in a column of the key or the primary key.
        """

    @abstractmethod
    def lock_rows(
        self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[SqlColumn], keys: pa.RecordBatch
    ) -> list[tuple[Any, ...] | None]:
        """The `columns` of the row of each of these distinct keys; None if there is none.

        They are locked until the transaction ends, in the order of the keys: another transaction that locks one of
        them waits, also for one that is missing, which the caller must then write or delete.
        """

    @abstractmethod
    def delete_rows(self, table: Sequence[str], key: Sequence[SqlColumn], keys: pa.RecordBatch) -> None:
        """Delete the rows of these keys."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, if it has any."""

    def create(self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[str]) -> None:
        """Create the table. The primary key is the key, if there is one."""
        # Without NOT NULL, a primary key of SQLite accepts any number of nulls.
        parts = [
            f"{quoted(column.name)} {self._database.type_of(column)}{' NOT NULL' if column.name in key else ''}"
            for column in columns
        ]
        if key:
            parts.append(f"PRIMARY KEY ({listed(key)})")
        self.execute(f"CREATE TABLE IF NOT EXISTS {quoted(*table)} ({', '.join(parts)})")

    def create_marks(self) -> None:
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {MARKS} (query text PRIMARY KEY, run text NOT NULL, epoch bigint NOT NULL, "
            "batch bigint NOT NULL, row_count bigint NOT NULL)"
        )

    def take_over(self, query: str, run: str) -> SqlMark:
        """Make `run` the one that delivers, and return the current mark."""
        rows = self.execute(
            f"INSERT INTO {MARKS} VALUES ({self.placeholder}, {self.placeholder}, 1, -1, 0) ON CONFLICT (query) "
            f"DO UPDATE SET run = excluded.run, epoch = {MARKS}.epoch + 1 RETURNING run, batch, row_count",
            (query, run),
        )
        return SqlMark(*rows[0])

    def mark(self, query: str) -> SqlMark | None:
        """The mark, locked until this transaction ends."""
        rows = self.execute(
            f"SELECT run, batch, row_count FROM {MARKS} WHERE query = {self.placeholder}{self.row_lock}", (query,)
        )
        return SqlMark(*rows[0]) if rows else None

    def set_mark(self, query: str, mark: SqlMark) -> None:
        place = self.placeholder
        self.execute(
            f"UPDATE {MARKS} SET batch = {place}, row_count = {place} WHERE query = {place}",
            (mark.batch, mark.rows, query),
        )

    def has_positions(self, query: str) -> bool:
        """Whether a query with this id of Spark has written rows in real-time mode."""
        return False

    def clear(self, table: Sequence[str]) -> None:
        """Delete all rows."""
        self.execute(f"DELETE FROM {quoted(*table)}")


def null_keys(
    batch: pa.RecordBatch, columns: Sequence[SqlColumn], keys: Iterable[str], *, nan_is_null: bool = False
) -> dict[int, list[str]]:
    """The indices of rows with null in a column of a key, each with these columns."""
    wanted = frozenset(keys)
    found: dict[int, list[str]] = {}
    for index, column in enumerate(columns):
        if column.name in wanted:
            nulls = pc.is_null(batch.column(index), nan_is_null=nan_is_null)
            for row in pc.indices_nonzero(nulls).to_pylist():
                found.setdefault(row, []).append(column.name)
    return found


def require_keys(
    batch: pa.RecordBatch, columns: Sequence[SqlColumn], keys: Iterable[str], *, nan_is_null: bool = False
) -> None:
    """Raise DeliveryError if a row has null in a column of a key: such a row cannot be replaced."""
    refused = null_keys(batch, columns, keys, nan_is_null=nan_is_null)
    if refused:
        name = next(iter(refused.values()))[0]
        raise DeliveryError(
            f"{len(refused)} of {batch.num_rows} rows have no value in {name!r}, a key column of their table, so the "
            "batch was not written: filter such rows out, give the column a value, or read a Topic with dead_letters, "
            "which then receive these rows"
        )
