"""The rows of a table of MySQL or MariaDB, as captures write them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.tables.apply.compared_tables import Key, Rows, bytes_of
from penstock.tables.apply.decoding import Row
from penstock.tables.cdc.mysql.catalog import find_server, find_tables
from penstock.tables.cdc.mysql.connections import connect, literal, parsed_url, quoted, translated
from penstock.tables.cdc.mysql.snapshot import key_literal, range_reader, rows_reader
from penstock.tables.cdc.records import Fragments

_decode: Final = msgspec.json.Decoder().decode
_TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "date", "time", "datetime", "enum")
_NUMBERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year")
_BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


class MysqlTableRows:
    """A table of a server of MySQL or MariaDB, which can be the source of a comparison."""

    def __init__(self, url: str, table: str) -> None:
        settings = parsed_url(url)
        self._where = f"the database {settings['database']!r} at {settings['host']}:{settings['port']}"
        self._connection = connect(settings, self._where)
        try:
            with translated(self._where):
                server = find_server(self._connection, self._where)
                self._table = find_tables(self._connection, [table], settings["database"], server)[0]
        except BaseException:
            self.close()
            raise
        self.name = self._table.full_name
        self.key = self._table.key
        self.columns = tuple(name for name, _ in self._table.columns)
        self._kinds = dict(self._table.columns)
        for name in self.key:
            if self._kinds[name].name not in (*_TEXTS, *_NUMBERS, *_BYTES, "timestamp"):
                self.close()
                raise ConfigError(
                    f"table {self.name} has the key column {name!r} of the type {self._kinds[name].full}, by which "
                    "rows cannot be compared"
                )

    def pages(self, limit: int) -> Iterator[Rows]:
        read = range_reader(self._connection, self._table, self._table.columns)
        after: list[str] | None = None
        while True:  # ends: keys only grow
            rows: list[Any] = []
            with self._reading():
                after = read(after, limit, self._named, rows)
            if not rows:
                return
            yield self._by_key(rows)

    def rows(self, keys: Sequence[Key]) -> Rows:
        wanted = [literals for key in keys if (literals := self._literals(key)) is not None]
        if not wanted:
            return {}
        listed = ", ".join(f"({', '.join(each)})" for each in wanted)
        where = f"({', '.join(map(quoted, self.key))}) IN ({listed})"
        with self._reading():
            found = self._by_key(list(rows_reader(self._connection, self._table, where, self._named)))
        return {key: found[key] for key in keys if key in found}  # not those that only a collation takes for the same

    @contextlib.contextmanager
    def locked(self) -> Iterator[Any]:
        raise ConfigError(f"table {self.name} cannot be repaired: a table of MySQL can be the source")
        yield

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with translated(self._where):
            self._connection.begin()
            try:
                yield
            finally:
                self._connection.rollback()

    def _named(self, fragments: Fragments) -> Row:
        return {name: _decode(text) for name, text in zip(self.columns, fragments, strict=True)}

    def _by_key(self, rows: Sequence[Row]) -> Rows:
        return {tuple(row[name] for name in self.key): row for row in rows}

    def _literals(self, key: Key) -> list[str] | None:
        """The values of a key in SQL; None if the table cannot have it."""
        found = []
        for name, value in zip(self.key, key, strict=True):
            kind = self._kinds[name]
            text = str(int(value) if isinstance(value, bool) else value)
            if kind.name in _BYTES:
                data = bytes_of(value)
                if data is None:
                    return None
                text = data.hex()
            elif kind.name in _NUMBERS:
                try:
                    float(text)
                except ValueError:
                    return None
            elif kind.name == "timestamp":
                text = text.removesuffix("Z")  # the session is in UTC
            found.append(literal(text) if kind.name == "enum" else key_literal(text, kind))
        return found
