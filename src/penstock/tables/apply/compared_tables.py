"""The rows of a table as captures write them, a range of keys at a time."""

from __future__ import annotations

import base64
import contextlib
import itertools
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from penstock.databases.sqlite import BUSY_TIMEOUT_S, connect
from penstock.databases.statements import listed, quoted
from penstock.errors import ConfigError, SourceUnavailableError
from penstock.streams.schemes import scheme_of
from penstock.tables.apply.decoding import Row
from penstock.tables.apply.target import is_sqlite
from penstock.tables.cdc.capture import MYSQL
from penstock.tables.cdc.sqlite import json_value

Key = tuple[Any, ...]
Rows = dict[Key, Row]

_decode: Final = msgspec.json.Decoder().decode
_MOST_VALUES: Final = 30_000
"""SQLite takes 32,766 in a statement."""


class ComparedTable(Protocol):
    """A table of one database."""

    name: str
    key: tuple[str, ...]
    columns: tuple[str, ...]

    def pages(self, limit: int) -> Iterator[Rows]:
        """All rows in the order of their keys, this many at a time, at least one."""

    def rows(self, keys: Sequence[Key]) -> Rows:
        """The rows with these keys, those that exist. A key is what JSON has, so bytes are base64."""

    def locked(self) -> contextlib.AbstractContextManager[Any]:
        """A transaction, with its connection. Nobody else writes the table until it ends, and `rows` reads in it."""

    def close(self) -> None: ...


def is_mysql(url: str) -> bool:
    return scheme_of(url) in MYSQL


def open_compared(url: str, table: str) -> ComparedTable:
    """Raises ConfigError for a table that does not exist, or has no key."""
    if not is_mysql(url) and is_sqlite(url):
        return SqliteTableRows(url.partition(":")[2], table)
    if is_mysql(url):
        from penstock.tables.apply.mysql_rows import MysqlTableRows  # needs an extra

        return MysqlTableRows(url, table)
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

    def pages(self, limit: int) -> Iterator[Rows]:
        keys = listed(self.key)
        places = [self.columns.index(name) for name in self.key]
        where = ""
        after: list[Any] = []
        while rows := self._select(f"{where} ORDER BY {keys} LIMIT {limit}", after):  # ends: keys only grow
            yield self._named(rows)
            after = [rows[-1][place] for place in places]  # SQLite's own values: JSON has no bytes
            where = f" WHERE ({keys}) > ({', '.join('?' * len(self.key))})"

    def rows(self, keys: Sequence[Key]) -> Rows:
        found: Rows = {}
        one = f"({', '.join('?' * len(self.key))})"
        wanted = [stored for key in keys for stored in itertools.product(*map(_stored_as, key))]
        limit = max(1, _MOST_VALUES // len(self.key))
        for some in (wanted[start : start + limit] for start in range(0, len(wanted), limit)):
            where = f" WHERE ({listed(self.key)}) IN (VALUES {', '.join([one] * len(some))})"
            found |= self._named(self._select(where, [value for key in some for value in key]))
        return found

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

    def _select(self, rest: str, values: list[Any]) -> list[tuple[Any, ...]]:
        query = f"SELECT {listed(self.columns)} FROM {quoted(self.name)}{rest}"
        return self._connection.execute(query, values).fetchall()

    def _named(self, rows: Sequence[tuple[Any, ...]]) -> Rows:
        found: Rows = {}
        for row in rows:
            named = {name: _decode(json_value(value)) for name, value in zip(self.columns, row, strict=True)}
            found[tuple(named[name] for name in self.key)] = named
        return found


def bytes_of(value: Any) -> bytes | None:
    """The bytes that this value of JSON may stand for."""
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except ValueError:
        return None


def _stored_as(value: Any) -> list[Any]:
    """What SQLite may have stored for a value of JSON: any column can have text or bytes."""
    if value in ("Infinity", "-Infinity"):
        return [value, float(value)]
    data = bytes_of(value)
    return [value] if data is None else [value, data]
