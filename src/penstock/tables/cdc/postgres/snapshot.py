"""Rows of a table by COPY: a range of keys at a time, or those with given keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from penstock.databases.postgres import psycopg
from penstock.tables.cdc.postgres.catalog import ColumnInfo, TableInfo

_AT_ONCE: Final = 2_000
_AT_ONCE_BYTES: Final = 4 * 1024 * 1024

RawRow = list[bytes | None]
"""PostgreSQL's text of each value."""

_NULL: Final = b"\\N"
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_MEANINGS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


def range_query(table: TableInfo, after: Sequence[str] | None, limit: int) -> str:
    """Selects the next rows by key, after the key with these texts."""
    types = {column.name: column.type_name for column in table.columns}
    keys = ", ".join(map(_quoted, table.key))
    conditions = [] if table.row_filter is None else [f"({table.row_filter})"]
    if after is not None:
        conditions.append(f"({keys}) > {_key_literal(after, [types[name] for name in table.key])}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = ", ".join(_quoted(column.name) for column in table.columns)
    return f"SELECT {columns} FROM {table.sql_name}{where} ORDER BY {keys} LIMIT {limit}"


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
    """The rows of a query."""
    for lines in _copied_lines(connection, query):
        for line in lines:
            fields: RawRow = line[:-1].split(b"\t")  # type: ignore[assignment]  # list is invariant
            if b"\\" in line:
                fields = [_unescaped(field) for field in fields]  # type: ignore[arg-type]
            yield fields


def copied_columns(connection: psycopg.Connection[Any], query: str, count: int) -> Iterator[list[list[bytes | None]]]:
    """The rows of a query with so many columns, some thousands at a time: the values of each column."""
    for lines in _copied_lines(connection, query):
        block = b"".join(lines)
        fields: list[Any] = block[:-1].replace(b"\n", b"\t").split(b"\t")
        escapes = block.count(b"\\")
        if escapes:
            fields = [None if field == _NULL else field for field in fields]
            if fields.count(None) < escapes:  # others besides those of NULL
                fields = [_unescaped(field) if field and b"\\" in field else field for field in fields]
        yield [fields[each::count] for each in range(count)]


def _copied_lines(connection: psycopg.Connection[Any], query: str) -> Iterator[list[bytes]]:
    """The lines of COPY, some thousands at a time: read from libpq itself, which takes a fifth of the time."""
    pg = connection.pgconn
    result: Any = pg.exec_(f"COPY ({query}) TO STDOUT".encode())
    if result.status != psycopg.pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    is_over = False
    try:
        while not is_over:
            lines: list[bytes] = []
            size_bytes = 0
            while len(lines) < _AT_ONCE and size_bytes < _AT_ONCE_BYTES:
                size, data = pg.get_copy_data(0)
                if size <= 0:
                    is_over = True
                    break
                lines.append(bytes(data))
                size_bytes += size
            if lines:
                yield lines
    finally:
        if not is_over:  # the reader has failed
            pg.get_cancel().cancel()
            while pg.get_copy_data(0)[0] > 0:  # ends: the server was told to send no more
                pass
        results = list(iter(pg.get_result, None))
    for each in results:
        if each.status != psycopg.pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(each)


def _unescaped(field: bytes) -> bytes | None:
    if field == _NULL:
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
