"""Rows of a table by COPY: a range of keys at a time, or those with given keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.databases.postgres import psycopg
from penstock.tables.cdc.postgres.catalog import ColumnInfo, TableInfo

RawRow = list[bytes | None]
"""PostgreSQL's text of each value."""

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def key_range(
    connection: psycopg.Connection[Any], table: TableInfo, after: Sequence[str] | None, limit: int
) -> Iterator[RawRow]:
    """The next rows by key, after the key with these texts."""
    types = {column.name: column.type_name for column in table.columns}
    keys = ", ".join(map(_quoted, table.key))
    conditions = [] if table.row_filter is None else [f"({table.row_filter})"]
    if after is not None:
        conditions.append(f"({keys}) > {_key_literal(after, [types[name] for name in table.key])}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = ", ".join(_quoted(column.name) for column in table.columns)
    query = f"SELECT {columns} FROM {table.sql_name}{where} ORDER BY {keys} LIMIT {limit}"
    return copied(connection, query)


def rows_by_key(
    connection: psycopg.Connection[Any],
    source: str,
    columns: Sequence[str],
    key: Sequence[ColumnInfo],
    wanted: Iterable[Sequence[str]],
) -> Iterator[RawRow]:
    """The values of the key and of `columns` in the rows with these keys, as they are now."""
    types = [column.type_name for column in key]
    keys = ", ".join(_quoted(column.name) for column in key)
    listed = ", ".join(_key_literal(each, types) for each in wanted)
    chosen = ", ".join([keys, *map(_quoted, columns)])
    return copied(connection, f"SELECT {chosen} FROM {source} WHERE ({keys}) IN ({listed})")


def copied(connection: psycopg.Connection[Any], query: str) -> Iterator[RawRow]:
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT".encode()) as copy:
        for block in copy:
            line = bytes(block)
            fields: RawRow = line[:-1].split(b"\t")  # type: ignore[assignment]  # list is invariant
            if b"\\" in line:
                fields = [_unescaped(field) for field in fields]  # type: ignore[arg-type]
            yield fields


def _unescaped(field: bytes) -> bytes | None:
    if field == b"\\N":
        return None
    if b"\\" not in field:
        return field
    return _ESCAPED.sub(lambda found: _MEANINGS.get(found[1], found[1]), field)


def _key_literal(texts: Sequence[str], types: Sequence[str]) -> str:
    literals = (f"{psycopg.sql.quote(text)}::{kind}" for text, kind in zip(texts, types, strict=True))
    return f"({', '.join(literals)})"


def _quoted(name: str) -> str:
    quoted: str = psycopg.sql.Identifier(name).as_string(None)
    return quoted
