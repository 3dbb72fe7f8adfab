"""Rows of a table, a range of keys at a time, and the position in the binlog that a snapshot is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Event
from typing import Any, Final, TypeVar

import msgspec

from penstock.errors import ConfigError, SourceUnavailableError
from penstock.tables.cdc.mysql.catalog import MysqlTable, ServerInfo
from penstock.tables.cdc.mysql.changes import BinlogPosition, Place
from penstock.tables.cdc.mysql.connections import literal, pymysql, quoted, raw_rows, rows_of
from penstock.tables.cdc.mysql.values import ColumnType, from_text
from penstock.tables.cdc.records import Fragments

Made = TypeVar("Made")

_POLL_S: Final = 0.02
_TRIES: Final = 500


def begin_snapshot(
    connection: Any, server: ServerInfo, where: str, after: Place | None, stopping: Event
) -> BinlogPosition:
    """Begin a transaction that sees exactly what was committed before a position in the binlog, and return that.

    With `after`, the position is not before it: a transaction may be in the binlog before others can see its rows.
    """
    for _ in range(_TRIES):
        position = _of_mariadb(connection, where) if server.is_mariadb else _of_mysql(connection, where)
        if after is None or position.place >= after:
            break
        if stopping.wait(_POLL_S):
            break
    else:
        raise SourceUnavailableError(f"{where} shows no snapshot after {after}: it is behind its own binlog")
    ((now_s,),) = rows_of(connection, "SELECT UNIX_TIMESTAMP()")
    return msgspec.structs.replace(position, at_s=int(now_s or 0))


def _of_mariadb(connection: Any, where: str) -> BinlogPosition:
    """MariaDB knows the position of a snapshot, and nothing has to be locked."""
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    found = {
        str(name).lower(): value for name, value in rows_of(connection, "SHOW STATUS LIKE 'binlog\\_snapshot\\_%'")
    }
    file, place = found.get("binlog_snapshot_file"), found.get("binlog_snapshot_position")
    if not file or not place:
        raise ConfigError(f"{where} does not tell the binlog position of a snapshot: it needs InnoDB and a binlog")
    return BinlogPosition(file, int(place))


def _of_mysql(connection: Any, where: str) -> BinlogPosition:
    """MySQL must be locked for the moment in which the transaction begins."""
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")
        try:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1044, 1045, 1227):
                raise
            raise ConfigError(
                f"{where}: this user may not lock tables for the moment in which a snapshot begins ({error.args[-1]}): "
                "GRANT RELOAD ON *.* TO <this user>"
            ) from error
        try:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            return current_position(connection, where)
        finally:
            cursor.execute("UNLOCK TABLES")


def current_position(connection: Any, where: str) -> BinlogPosition:
    """The end of the binlog."""
    file, place, *_ = binlog_status(connection, where)
    return BinlogPosition(str(file), int(place or 0))


def binlog_status(connection: Any, where: str) -> tuple[str | None, ...]:
    """File, position, and the databases that are logged, or not."""
    try:
        rows = rows_of(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # before MySQL 8.2, and in MariaDB
        rows = rows_of(connection, "SHOW MASTER STATUS")
    if not rows:
        raise ConfigError(f"{where} writes no binlog: start it with --log-bin and --server-id=1")
    return rows[0]


def range_reader(
    connection: Any, table: MysqlTable, columns: Sequence[tuple[str, ColumnType]]
) -> Callable[[list[str] | None, int, Callable[[Fragments], Any], list[Any]], list[str] | None]:
    """Reads the next rows by key, as a `ReadRange` does."""
    types = dict(columns)
    selected, places = _selected(table, columns)
    order = ", ".join(quoted(name) for name in table.key)
    converted = _converter(table, columns)

    def read(
        after: list[str] | None, limit: int, write: Callable[[Fragments], Any], rows: list[Any]
    ) -> list[str] | None:
        where = "" if after is None else " WHERE " + _after(table.key, [key_literal(*each) for each in _kinds(after)])
        query = f"SELECT {selected} FROM {table.sql_name}{where} ORDER BY {order} LIMIT {limit}"
        last: list[bytes | None] = []
        with connection.cursor() as cursor:
            # Back to the savepoint lets go of the table, so that ALTER TABLE does not wait for the whole snapshot.
            cursor.execute("SAVEPOINT penstock")
            for last in raw_rows(connection, query):
                rows.append(write(converted(last)))
            cursor.execute("ROLLBACK TO SAVEPOINT penstock")
        return (
            [_key_text(last[place], types[name]) for name, place in zip(table.key, places, strict=True)]
            if last
            else after
        )

    def _kinds(after: list[str]) -> list[tuple[str, ColumnType]]:
        return [(text, types[name]) for text, name in zip(after, table.key, strict=True)]

    return read


def rows_reader(connection: Any, table: MysqlTable, where: str, write: Callable[[Fragments], Made]) -> Iterator[Made]:
    """The rows that meet a condition."""
    selected, _ = _selected(table, table.columns)
    converted = _converter(table, table.columns)
    for row in raw_rows(connection, f"SELECT {selected} FROM {table.sql_name} WHERE {where}"):
        yield write(converted(row))


def _selected(table: MysqlTable, columns: Sequence[tuple[str, ColumnType]]) -> tuple[str, list[int]]:
    """The list of a SELECT, and the places of the key in it."""
    types = dict(columns)
    selected = [kind.read_by(quoted(name)) for name, kind in columns]
    names = [name for name, _ in columns]
    places: list[int] = []
    for name in table.key:
        key = types[name].key_by(quoted(name))
        if key == types[name].read_by(quoted(name)):
            places.append(names.index(name))
        else:
            places.append(len(selected))
            selected.append(key)
    return ", ".join(selected), places


def _converter(
    table: MysqlTable, columns: Sequence[tuple[str, ColumnType]]
) -> Callable[[list[bytes | None]], list[bytes]]:
    converters = [from_text(kind, table.full_name, name) for name, kind in columns]

    def converted(row: list[bytes | None]) -> list[bytes]:
        return [b"null" if each is None else convert(each) for each, convert in zip(row, converters)]  # noqa: B905

    return converted


def _after(key: Sequence[str], values: Sequence[str]) -> str:
    """The rows after a key. Spelled out, because MySQL does not use an index for `(a, b) > (1, 2)`."""
    name, value = quoted(key[0]), values[0]
    if len(key) == 1:
        return f"{name} > {value}"
    return f"{name} >= {value} AND ({name} > {value} OR ({_after(key[1:], values[1:])}))"


def _key_text(value: bytes | None, kind: ColumnType) -> str:
    assert value is not None
    return value.hex() if kind.is_bytes else value.decode()


def key_literal(text: str, kind: ColumnType) -> str:
    """A value of a key in SQL: a number, text, or hexadecimal digits."""
    if kind.is_bytes:
        return f"X'{text}'"
    return text if kind.is_number else literal(text)
