"""The rows of a table as captures write them, in PostgreSQL or SQLite, a range of keys at a time."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.databases.sqlite import BUSY_TIMEOUT_S, connect
from penstock.databases.statements import listed, quoted
from penstock.errors import ConfigError, SourceUnavailableError
from penstock.tables.apply.decoding import Row
from penstock.tables.apply.target import is_sqlite
from penstock.tables.cdc.sqlite import json_value

Key = tuple[Any, ...]
Rows = dict[Key, Row]

_decode: Final = msgspec.json.Decoder().decode


class ComparedTable(Protocol):
    """A table of one database."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def page(self, after: Key | None, limit: int) -> Rows:
        """The next rows in the order of their keys."""

    def rows(self, keys: Sequence[Key]) -> Rows:
        """The rows with these keys, those that exist."""

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        """A transaction, with its connection. Nobody else writes the table until it ends, and `rows` reads in it."""

    def close(self) -> None: ...


def open_compared(url: str, table: str) -> ComparedTable:
    """Raises ConfigError for a table that does not exist, or has no key."""
    if is_sqlite(url):
        return SqliteTableRows(url.partition(":")[2], table)
    from penstock.tables.apply.postgres_rows import PostgresTableRows  # needs an extra

    return PostgresTableRows(url, table)


class SqliteTableRows:
    """A table of a SQLite file."""

    def __init__(self, path: str, table: str) -> None:
        self._path = Path(path).expanduser().absolute()
        if not self._path.exists():
            raise ConfigError(f"there is no SQLite database {self._path}")
        self.name = table
        self._connection: sqlite3.Connection = connect(self._path)
        rows: list[Any] = self._connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        self.columns = tuple(row[1] for row in rows)
        self.key = tuple(row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5])
        if not self.key:
            self.close()
            problem = "has no PRIMARY KEY" if rows else "does not exist"
            raise ConfigError(f"table {table} of {self._path} {problem}: rows are compared by their key")

    def page(self, after: Key | None, limit: int) -> Rows:
        keys = listed(self.key)
        where = "" if after is None else f" WHERE ({keys}) > ({', '.join('?' * len(self.key))})"
        return self._select(f"{where} ORDER BY {keys} LIMIT {limit}", list(after or ()))

    def rows(self, keys: Sequence[Key]) -> Rows:
        if not keys:
            return {}
        one = f"({', '.join('?' * len(self.key))})"
        values = [value for key in keys for value in key]
        return self._select(f" WHERE ({listed(self.key)}) IN (VALUES {', '.join([one] * len(keys))})", values)

    @contextlib.contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise SourceUnavailableError(
                f"{self._path} was locked by another program for {BUSY_TIMEOUT_S:g} s: {error}"
            ) from error
        try:
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()

    def _select(self, rest: str, values: list[Any]) -> Rows:
        found: Rows = {}
        for row in self._connection.execute(f"SELECT {listed(self.columns)} FROM {quoted(self.name)}{rest}", values):
            named = {name: _decode(json_value(value)) for name, value in zip(self.columns, row, strict=True)}
            found[tuple(named[name] for name in self.key)] = named
        return found
