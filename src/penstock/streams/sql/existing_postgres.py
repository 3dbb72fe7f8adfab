"""Existing tables of PostgreSQL, read in the order of their ids, and up to where these are final.

A sequence gives an id when a row is inserted, and the row appears when its transaction commits. So id 6 may be visible
while id 5 is not there yet, and a reader that passed 5 would miss it. Whether 5 is missing for ever (a rollback) or
will come cannot be seen from the rows.

It can be seen from locks. Whoever inserts into a table holds a ROW EXCLUSIVE lock on it from before its ids are given
until its transaction has ended and is visible. So a reader (1) looks at the largest visible id, and then (2) at who
holds such a lock. Every smaller id was given before (1), to a transaction that has ended by (2) or is among the
holders. When all of these holders have ended, the ids up to the one of (1) are final: what a later statement does not
see there will never come. Transactions that do not write to the table hold nothing up, however long they take.

This proof needs ids that the INSERT itself takes from the sequence, one by one, in ascending order. A sequence with a
cache, ids that a program draws ahead (Hibernate does), and rows copied by logical replication break it; the first is
found and refused, the others cannot be seen here: `transaction_order` has a remedy. A standby server does not know the
locks of its primary, and is refused.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.databases.postgres import Rows
from penstock.errors import ConfigError, UnknownTopicError
from penstock.model import Pointer, is_topic_name
from penstock.streams.sql.existing_tables import LOWEST
from penstock.streams.sql.postgres_pool import Listener, PostgresSettings, TablePool, quoted
from penstock.streams.sql.row_batch import Row

INTEGERS: Final = ("smallint", "integer", "bigint")

FIND: Final = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text, pg_is_in_recovery()
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = coalesce(to_regclass(%s), to_regclass(%s))"""
COLUMNS: Final = """
    SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
SEQUENCE: Final = """
    SELECT s.seqrelid::bigint, s.seqrelid::regclass::text, s.seqcache, s.seqincrement,
        has_sequence_privilege(s.seqrelid, 'SELECT, USAGE')
    FROM pg_sequence s
    WHERE s.seqrelid = pg_get_serial_sequence(%(table)s, %(column)s)::regclass OR s.seqrelid IN (
        SELECT e.refobjid FROM pg_attrdef d
        JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        JOIN pg_depend e ON e.classid = 'pg_attrdef'::regclass AND e.objid = d.oid
            AND e.refclassid = 'pg_class'::regclass
        WHERE d.adrelid = %(oid)s AND a.attname = %(column)s)"""
NAMES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY(current_schemas(false)) AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND %s::text[] <@ ARRAY(SELECT a.attname::text FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
    ORDER BY c.relname"""
# NULL if there is no such sequence (any more).
GIVEN: Final = """(SELECT coalesce(pg_sequence_last_value(s.seqrelid::regclass), 0) FROM pg_sequence s
    WHERE s.seqrelid = %(sequence)s::bigint::oid)"""
# Inserting through a parent locks it as well as the partition; inserting into a partition locks that one only.
HORIZON: Final = """
    WITH RECURSIVE tree AS (
        SELECT %(table)s::regclass::oid AS oid
        UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree ON i.inhparent = tree.oid)
    SELECT %(table)s::regclass::oid::bigint, {given}, (SELECT max({id}) FROM {table}), ARRAY(
        SELECT l.virtualtransaction FROM pg_locks l JOIN tree ON l.relation = tree.oid
        WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.granted
            AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))"""


@dataclass(slots=True)
class Horizon:
    """The id up to which the rows of one table are final, as far as this process knows."""

    end: Pointer = LOWEST
    """Every id before it is final."""
    next_end: Pointer = LOWEST
    """Every id before it will be final when the holders have ended."""
    holders: frozenset[str] = frozenset()
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while the database is asked: an older answer must not be judged after a newer one."""

    def check_given(self, given: Pointer) -> None:
        """Start over if the sequence has given fewer ids than were seen: it was restarted, and gives them again."""
        if given + 1 < self.end:
            self.end = self.next_end = LOWEST
            self.holders = frozenset()

    def judge(self, last: Pointer | None, holders: frozenset[str]) -> None:
        """`last` is the largest id that was visible before it was looked who holds locks."""
        if not self.holders & holders:
            self.end = max(self.end, self.next_end)
        seen_end = self.end if last is None else last + 1
        if not holders:
            self.end = max(self.end, seen_end)
        elif self.next_end <= self.end:
            self.next_end, self.holders = seen_end, holders


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and how it is read."""

    oid: int
    identifier: str
    """Its name with its schema, quoted."""
    name: str
    """The same for statements with parameters."""
    select: str
    time_ms: str
    """The expression of the timestamp in milliseconds."""
    sequence: int | None
    """Its oid, if its last value may be looked at."""
    horizon: Horizon


class PostgresRows:
    """`RowSource` in PostgreSQL."""

    def __init__(self, pool: TablePool, settings: PostgresSettings, listener: Listener) -> None:
        self.where = pool.where
        self._pool = pool
        self._settings = settings
        self._listener = listener
        self._tables: dict[str, Table] = {}
        self._id = quoted(settings.id_column)

    def check(self) -> None:
        self._pool.execute("SELECT 1")

    def names(self) -> list[str]:
        found = self._pool.execute(NAMES, (self._wanted(),))
        return [name for (name,) in found if is_topic_name(name) and not name.startswith("penstock_")]

    def check_table(self, table: str) -> None:
        if table not in self._tables:
            self._tables[table] = self._described(table)

    def final_end(self, table: str, beyond: Pointer) -> Pointer:
        self.check_table(table)
        described = self._tables[table]
        horizon = described.horizon
        if horizon.end > beyond:
            return horizon.end
        sql = HORIZON.format(id=self._id, table=described.name, given=GIVEN)
        with horizon.lock:
            [(oid, last_given, last, holders)] = self._read(
                table, sql, {"table": described.identifier, "sequence": described.sequence}
            )
            if oid == described.oid:
                if last_given is not None:
                    horizon.check_given(last_given)
                horizon.judge(last, frozenset(holders))
                return horizon.end
        self._tables[table] = self._described(table)  # it was dropped and created again
        return LOWEST

    def fetch(self, table: str, start: Pointer, end: Pointer, limit: int) -> list[Row]:
        found = self._read(
            table,
            f"{self._tables[table].select} WHERE {self._id} >= %s AND {self._id} < %s ORDER BY {self._id} LIMIT %s",
            (start, end, limit),
        )
        return [(id, text_bytes(key), text_bytes(value), None, time_ms) for id, key, value, time_ms in found]

    def first(self, table: str) -> Pointer | None:
        self._listener.start()  # called when nothing was found, before waiting
        [(found,)] = self._read(table, f"SELECT min({self._id}) FROM {self._tables[table].name}")
        return None if found is None else int(found)

    def last_given(self, table: str) -> Pointer | None:
        [(found,)] = self._read(table, f"SELECT {GIVEN}", {"sequence": self._tables[table].sequence})
        return None if found is None else int(found)

    def at_time(self, table: str, time_ms: int) -> Pointer | None:
        described = self._tables[table]
        sql = f"SELECT min({self._id}) FROM {described.name} t WHERE {described.time_ms} >= %s"
        [(found,)] = self._read(table, sql, (time_ms,))
        return None if found is None else int(found)

    def close(self) -> None:
        self._listener.close()
        self._pool.close()

    def _described(self, table: str) -> Table:
        schema, dot, name = table.partition(".")
        qualified = f"{_identifier(schema)}.{_identifier(name)}" if dot and name else None
        found = self._pool.execute(FIND, (_identifier(table), qualified))
        if not found:
            raise UnknownTopicError(f"{self.where} has no table {table!r}: write SCHEMA.TABLE if it is not on the path")
        [(oid, schema, name, kind, is_standby)] = found
        if is_standby:
            raise ConfigError(
                f"{self.where} is a standby, which does not know the open transactions of its primary: existing tables "
                "are read from the primary"
            )
        if kind not in ("r", "p"):
            raise ConfigError(f"{table!r} in {self.where} is not a table: views and foreign tables cannot be followed")
        columns: dict[str, str] = dict(self._pool.execute(COLUMNS, (oid,)))
        for column in self._wanted():
            if column not in columns:
                raise ConfigError(
                    f"table {table!r} in {self.where} has no column {column!r}; it has {', '.join(columns)}"
                )
        if columns[self._settings.id_column] not in INTEGERS:
            raise ConfigError(f"id_column={self._settings.id_column!r} of table {table!r} must be an integer column")
        identifier, full_name = f"{_identifier(schema)}.{_identifier(name)}", f"{quoted(schema)}.{quoted(name)}"
        time_ms = self._time_ms(table, columns)
        return Table(
            oid=oid,
            identifier=identifier,
            name=full_name,
            select=f"SELECT {self._id}, {self._key(columns)}, {self._value(columns)}, {time_ms}{self._extra(columns)} "
            f"FROM {full_name} t",
            time_ms=time_ms,
            sequence=self._sequence(table, oid, identifier),
            horizon=Horizon(),
        )

    def _sequence(self, table: str, oid: int, full_name: str) -> int | None:
        column = self._settings.id_column
        found = self._pool.execute(SEQUENCE, {"table": full_name, "column": column, "oid": oid})
        if self._settings.trust_ids:
            return None
        remedy = "set trust_ids=true if every row gets a larger id than all rows that are committed before it"
        if not found:
            raise ConfigError(
                f"{column!r} of table {table!r} takes its values from no sequence, so a row may appear below an id "
                f"that was read: choose a serial or identity column, or {remedy}"
            )
        sequence, name, cache, increment, may_read = found[0]
        if cache != 1 or increment < 1:
            raise ConfigError(
                f"the sequence {name} of table {table!r} has CACHE {cache} and INCREMENT {increment}, so its ids are "
                f"not given in ascending order: ALTER SEQUENCE {name} CACHE 1 INCREMENT 1, or {remedy}"
            )
        return int(sequence) if may_read else None

    def _extra(self, columns: dict[str, str]) -> str:
        """Further columns of the SELECT, after a comma."""
        return ""

    def _key(self, columns: dict[str, str]) -> str:
        return _raw(self._settings.key_column, columns) if self._settings.key_column else "NULL"

    def _value(self, columns: dict[str, str]) -> str:
        if self._settings.payload_column:
            return _raw(self._settings.payload_column, columns)
        chosen = self._settings.chosen_columns
        if not chosen:
            return "row_to_json(t)::text"
        return f"(SELECT row_to_json(v)::text FROM (SELECT {', '.join('t.' + quoted(each) for each in chosen)}) v)"

    def _time_ms(self, table: str, columns: dict[str, str]) -> str:
        name = self._settings.timestamp_column
        if not name:
            return "NULL::bigint"
        if columns[name] in INTEGERS:
            return f"t.{quoted(name)}::bigint"
        if not columns[name].startswith(("timestamp", "date")):
            raise ConfigError(
                f"timestamp_column={name!r} of table {table!r} is {columns[name]}: it must be a timestamp, or an "
                "integer of milliseconds since 1970"
            )
        return f"floor(extract(epoch FROM t.{quoted(name)}) * 1000)::bigint"

    def _wanted(self) -> list[str]:
        return self._settings.wanted_columns

    def _read(self, table: str, sql: str, values: Any = ()) -> Rows:
        try:
            with self._pool.connection() as connection, connection.cursor(binary=True) as cursor:
                cursor.execute(sql.encode(), values)
                return cursor.fetchall()
        except (UnknownTopicError, ConfigError):
            self._tables.pop(table, None)  # it was changed: describe it again
            raise


def _raw(column: str, columns: dict[str, str]) -> str:
    return f"t.{quoted(column)}" if columns[column] == "bytea" else f"t.{quoted(column)}::text"


def text_bytes(value: Any) -> bytes | None:
    """Text as UTF-8; bytes stay as they are."""
    return value.encode() if isinstance(value, str) else value


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
