"""The rows of a table of PostgreSQL, as captures write them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock.databases.postgres import psycopg
from penstock.errors import ConfigError
from penstock.tables.apply.compared_tables import Key, Rows, bytes_of
from penstock.tables.cdc.postgres.catalog import ColumnInfo, find_tables
from penstock.tables.cdc.postgres.connections import connect, parsed_url, translated
from penstock.tables.cdc.postgres.snapshot import RawRow, copied, range_query, rows_by_key
from penstock.tables.cdc.postgres.values import TypeCatalog, binary

_decode: Final = msgspec.json.Decoder().decode


class PostgresTableRows:
    """A table of a PostgreSQL database."""

    def __init__(self, url: str, table: str) -> None:
        settings = parsed_url(url)
        self._where = f"the PostgreSQL database {settings.get('dbname') or 'of the user'!r}"
        self._connection = connect(settings, self._where)
        try:
            with translated(self._where):
                self._table = find_tables(self._connection, [self._full_name(table)])[0]
                types = TypeCatalog()
                self._converters = {
                    each.name: types.converter(each.type_oid, table, each.name, self._connection)
                    for each in self._table.columns
                }
        except BaseException:
            self.close()
            raise
        self.name = self._table.full_name
        self.key = self._table.key
        self.columns = tuple(each.name for each in self._table.columns)

    def pages(self, limit: int) -> Iterator[Rows]:
        places = [self.columns.index(name) for name in self.key]
        after: list[str] | None = None
        while True:  # ends: keys only grow
            with translated(self._where):
                rows = list(copied(self._connection, range_query(self._table, after, limit)))
            if not rows:
                return
            yield self._named(self.columns, rows)
            after = [(rows[-1][place] or b"").decode() for place in places]  # PostgreSQL's own text of the key

    def rows(self, keys: Sequence[Key]) -> Rows:
        by_name = {each.name: each for each in self._table.columns}
        key: list[ColumnInfo] = [by_name[name] for name in self.key]
        texts = ([self._text(name, value) for name, value in zip(self.key, one, strict=True)] for one in keys)
        wanted = [each for each in texts if None not in each]
        if not wanted:
            return {}
        others = [name for name in self.columns if name not in self.key]
        with translated(self._where):
            found = rows_by_key(self._connection, self._table.sql_name, others, key, wanted)  # type: ignore[arg-type]
            return self._named([*self.key, *others], found)

    @contextlib.contextmanager
    def locked(self) -> Iterator[psycopg.Connection[Any]]:
        name = self._table.sql_name.removeprefix("ONLY ")
        with translated(self._where), self._connection.transaction():
            # Waits for transactions that have written to the table, and makes others wait.
            self._connection.execute(f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE".encode())
            yield self._connection

    def close(self) -> None:
        self._connection.close()

    def _named(self, columns: Sequence[str], rows: Iterable[RawRow]) -> Rows:
        found: Rows = {}
        for row in rows:
            named = {
                name: None if text is None else _decode(self._converters[name](text))
                for name, text in zip(columns, row, strict=True)
            }
            found[tuple(named[name] for name in self.key)] = named
        return found

    def _full_name(self, table: str) -> str:
        if "." in table:
            return table
        (schema,) = self._connection.execute(
            "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass(%s)",
            (psycopg.sql.Identifier(table).as_string(None),),
        ).fetchone() or (None,)
        if schema is None:
            raise ConfigError(f"{self._where} has no table {table!r} in its search path: write SCHEMA.TABLE")
        return f"{schema}.{table}"

    def _text(self, column: str, value: Any) -> str | None:
        """PostgreSQL's text of a value of JSON; None if the column cannot have it."""
        if self._converters[column] is binary:
            data = bytes_of(value)
            return None if data is None else "\\x" + data.hex()
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value)
