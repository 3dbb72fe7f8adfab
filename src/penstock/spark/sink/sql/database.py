"""What a database must be able to do to be a place for results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.spark.sink.sql.columns import SqlColumn

MARKS: Final = "penstock_spark_batches"
"""The table that says which batch of which query was delivered last, and which run may deliver the next."""


@dataclass(frozen=True, slots=True)
class ExistingColumn:
    """A column of a table that is there."""

    name: str
    declared: str
    """Its type, as the database writes it."""
    must_be_given: bool
    """It takes no null, and has no default."""


@dataclass(frozen=True, slots=True)
class ExistingTable:
    columns: Mapping[str, ExistingColumn]
    unique: frozenset[frozenset[str]]
    """The sets of columns by which rows are unique."""


@dataclass(frozen=True, slots=True)
class SqlMark:
    """What is known about one target of one query."""

    run: str
    batch: int
    rows: int


class SqlTransaction(Protocol):
    """An open transaction: all of it counts, or nothing."""

    def describe(self, table: Sequence[str]) -> ExistingTable | None:
        """The table of this name; None where there is none."""

    def create(self, table: Sequence[str], columns: Sequence[SqlColumn], key: Sequence[str]) -> None:
        """Create the table, with these columns and this primary key, if there is a key."""

    def create_marks(self) -> None:
        """Create the table of marks, unless it is there."""

    def take_over(self, query: str, run: str) -> SqlMark:
        """From now on, `run` is the one that delivers. Gives the mark as it is then."""

    def mark(self, query: str) -> SqlMark | None:
        """The mark, which nobody else changes before this transaction ends."""

    def set_mark(self, query: str, mark: SqlMark) -> None: ...

    def clear(self, table: Sequence[str]) -> None:
        """Remove all rows."""

    def write(
        self,
        table: Sequence[str],
        columns: Sequence[SqlColumn],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
    ) -> None:
        """Insert rows, in their order; with a key, a row replaces the one of the same key, also one from before it."""


class SqlDatabase(Protocol):
    """A database, connected when it is first needed, and again after it was lost."""

    @property
    def where(self) -> str:
        """What it is called in messages, without passwords."""

    def fits(self, column: SqlColumn, declared: str) -> bool:
        """Whether a column of this declared type keeps every value of `column` as it is."""

    def type_of(self, column: SqlColumn) -> str:
        """The type that a column gets in a table that is created."""

    def transaction(self) -> AbstractContextManager[SqlTransaction]:
        """Commits when the block is left, rolls back when it is left with an error.

        StoreUnavailableError: it cannot be reached, or refused for now; OutcomeUnknownError, which is one: it was lost
        while it committed. DeliveryError: it does not take the rows. ConfigError: it does not do what it is asked.
        """

    def close(self) -> None: ...


def names_in(table: str) -> tuple[str, ...]:
    """The schema, if there is one, and the table. ConfigError for a name that is none."""
    names = tuple(table.split("."))
    if not 1 <= len(names) <= 2 or not all(names) or "\x00" in table:
        raise ConfigError(f"{table!r} is no name of a table: write TABLE, or SCHEMA.TABLE")
    return names


def quoted(*names: str) -> str:
    """Names as they stand in a statement, whatever characters they have."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def listed(names: Iterable[str]) -> str:
    return ", ".join(quoted(name) for name in names)


def upsert_tail(columns: Sequence[SqlColumn], key: Sequence[str]) -> str:
    """What follows the rows of an INSERT, so that they replace those of the same key. The same for both databases."""
    if not key:
        return ""
    others = [column.name for column in columns if column.name not in key]
    if not others:
        return f" ON CONFLICT ({listed(key)}) DO NOTHING"
    changes = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
    return f" ON CONFLICT ({listed(key)}) DO UPDATE SET {changes}"
