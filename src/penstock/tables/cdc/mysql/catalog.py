"""What the server has: its settings, tables to capture and their keys. Checked before a capture starts."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import ConfigError
from penstock.tables.cdc.mysql.charsets import Charsets
from penstock.tables.cdc.mysql.connections import literal, pymysql, quoted, rows_of
from penstock.tables.cdc.mysql.values import ColumnType, from_text
from penstock.tables.cdc.source import chosen_tables

logger = logging.getLogger(__name__)

OLDEST_MARIADB: Final = (10, 5)
OLDEST_MYSQL: Final = (8, 0)
_SYSTEM: Final = "('mysql', 'sys', 'information_schema', 'performance_schema')"
_SETTINGS: Final = (
    "version", "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options",
    "binlog_transaction_compression", "server_uuid", "server_id", "log_slave_updates", "log_replica_updates",
    "lower_case_table_names", "innodb_native_foreign_keys",
)  # fmt: skip
_WANTED: Final = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_NO_CASCADE: Final = ("RESTRICT", "NO ACTION")
_VERSIONED: Final = "SYSTEM VERSIONED"
_TABLES: Final = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, TABLE_ROWS FROM information_schema.TABLES "
    f"WHERE TABLE_TYPE IN ('BASE TABLE', '{_VERSIONED}')"
)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The captured server."""

    is_mariadb: bool
    version: tuple[int, int]
    settings: dict[str, str]
    charsets: Charsets

    @property
    def connector(self) -> str:
        return "mariadb" if self.is_mariadb else "mysql"


@dataclass(frozen=True, slots=True)
class MysqlTable:
    """A table that is captured."""

    schema: str
    name: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, ColumnType], ...]
    """Without generated ones."""
    generated: frozenset[str]
    rows: int | None
    """About how many it has."""

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql_name(self) -> str:
        return quoted(self.schema, self.name)


def find_server(connection: Any, where: str) -> ServerInfo:
    """Raise ConfigError unless the server is set up for a row binlog that can be captured."""
    names = ", ".join(f"'{each}'" for each in _SETTINGS)
    rows = rows_of(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    settings = {str(name): str(value) for name, value in rows}
    text = settings["version"]
    is_mariadb = "mariadb" in text.lower()
    major, minor = (int(part) for part in text.split("-")[0].split(".")[:2])
    product, oldest = ("MariaDB", OLDEST_MARIADB) if is_mariadb else ("MySQL", OLDEST_MYSQL)
    if (major, minor) < oldest:
        raise ConfigError(f"{where} is {product} {major}.{minor}: capturing needs {oldest[0]}.{oldest[1]} or newer")
    if settings.get("log_bin") != "ON":
        raise ConfigError(
            f"{where} writes no binlog: start it with --log-bin and --server-id=1 (in [mysqld] of my.cnf)"
        )
    for name, wanted in _WANTED.items():
        given = settings.get(name, wanted)
        if given.upper() != wanted:
            raise ConfigError(
                f"{where} has {name} = {given}: SET GLOBAL {name} = '{wanted}', and set it in my.cnf; sessions that "
                "are open keep the old one, so end them, too"
            )
    for name in ("binlog_row_value_options", "binlog_transaction_compression"):
        given = settings.get(name, "")
        if given.upper() not in ("", "OFF"):
            raise ConfigError(f"{where} has {name} = {given}, which cannot be read: SET GLOBAL {name} = DEFAULT")
    return ServerInfo(is_mariadb, (major, minor), settings, Charsets(_collations(connection, is_mariadb)))


def _collations(connection: Any, is_mariadb: bool) -> dict[int, str]:
    found = rows_of(connection, "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATIONS")
    if is_mariadb:
        with contextlib.suppress(
            pymysql.err.OperationalError
        ):  # since 10.10, the numbers of shared collations are here
            query = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"
            found += rows_of(connection, query)
    return {int(number): name for number, name in found if number is not None and name is not None}


def check_replica(connection: Any, server: ServerInfo, where: str) -> None:
    """Raise ConfigError for a replica that does not log what it replicates, if this user may look."""
    logged = server.settings.get("log_replica_updates") or server.settings.get("log_slave_updates")
    if logged != "OFF":
        return
    command = "SHOW SLAVE STATUS" if server.is_mariadb or server.version < (8, 4) else "SHOW REPLICA STATUS"
    with contextlib.suppress(pymysql.err.Error):
        if rows_of(connection, command):
            raise ConfigError(
                f"{where} is a replica that does not log what it replicates: start it with --log-slave-updates "
                "(log_replica_updates = ON), or capture from its primary"
            )


def find_tables(connection: Any, patterns: Sequence[str], schema: str, server: ServerInfo) -> list[MysqlTable]:
    """The tables that the patterns name. Raises ConfigError for one that cannot be captured, with the remedy."""
    rows = rows_of(connection, f"{_TABLES} AND TABLE_SCHEMA NOT IN {_SYSTEM} ORDER BY 1, 2")
    there = {f"{row[0]}.{row[1]}": row for row in rows}
    return [_described(connection, there[name], server) for name in chosen_tables(patterns, there, schema)]


def find_table(connection: Any, full_name: str, server: ServerInfo) -> MysqlTable | None:
    """A table as it is now; None if it is gone. Raises ConfigError if it cannot be captured any more."""
    rows = rows_of(connection, f"{_TABLES} AND CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) = {literal(full_name)}")
    found = next((row for row in rows if f"{row[0]}.{row[1]}" == full_name), None)
    return None if found is None else _described(connection, found, server)


def _described(connection: Any, row: tuple[str | None, ...], server: ServerInfo) -> MysqlTable:
    schema, name, table_kind, count = row
    assert schema is not None
    assert name is not None
    full = f"{schema}.{name}"
    if table_kind == _VERSIONED:
        raise ConfigError(
            f"table {full} is system-versioned: its history would be captured as rows: leave it out, or ALTER TABLE "
            f"{full} DROP SYSTEM VERSIONING"
        )
    if server.settings.get("innodb_native_foreign_keys") != "OFF":
        _check_cascades(connection, schema, name)
    columns: list[tuple[str, ColumnType]] = []
    generated: set[str] = set()
    query = (
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, COALESCE(GENERATION_EXPRESSION, '') "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"
    )
    for column, kind, full_kind, expression in rows_of(connection, query, (schema, name)):
        assert column is not None
        assert kind is not None
        assert full_kind is not None
        if expression:
            generated.add(column)
        else:
            found = ColumnType(kind.lower(), full_kind)
            from_text(found, full, column)
            columns.append((column, found))
    key_query = (
        "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
        "AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
    )
    key = tuple(str(row[0]) for row in rows_of(connection, key_query, (schema, name)))
    if not key:
        raise ConfigError(
            f"table {full} has no primary key, which the records of its topic need: ALTER TABLE {full} ADD PRIMARY KEY "
            "(...), or leave the table out"
        )
    if generated & set(key):
        raise ConfigError(
            f"table {full} has the generated column {min(generated & set(key))!r} in its key, and generated columns "
            "are not captured: leave the table out"
        )
    try:
        rows_of(connection, f"SELECT 1 FROM {quoted(schema, name)} LIMIT 0")
    except pymysql.err.OperationalError as error:
        if error.args[0] in (1142, 1143):
            raise ConfigError(
                f"table {full} cannot be read by this user: GRANT SELECT ON {full} TO <this user>"
            ) from error
        raise
    return MysqlTable(schema, name, key, tuple(columns), frozenset(generated), None if count is None else int(count))


def _check_cascades(connection: Any, schema: str, name: str) -> None:
    """Changes that a foreign key makes by itself are not in the binlog, until MySQL 9.6."""
    query = (
        "SELECT CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s"
    )
    for constraint, on_delete, on_update in rows_of(connection, query, (schema, name)):
        if on_delete in _NO_CASCADE and on_update in _NO_CASCADE:
            continue
        raise ConfigError(
            f"table {schema}.{name} has the foreign key {constraint!r} ON DELETE {on_delete} ON UPDATE {on_update}: "
            "changes that it makes are not in the binlog, and would be missed. Make it RESTRICT and let the program or "
            "a trigger change the rows, or leave the table out"
        )
