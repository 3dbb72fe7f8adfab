"""Tables of a SQLite file as topics: `sqlite:./events.db`.

SQLite has one writer at a time, and a reader sees whole transactions: ids that are given by SQLite appear in their
order. The file must be on a local disk, as SQLite wants it.
"""

from __future__ import annotations

import base64
import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.abc import Stream
from penstock.databases import Schema
from penstock.databases.sqlite import Rows, SqliteDatabase, connect
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    StoreUnavailableError,
    TopicExistsError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Pointer, is_topic_name
from penstock.streams.adapting.polled_topic import Wakeups
from penstock.streams.backend_url import parse_backend_url, settings_of
from penstock.streams.sql.existing_tables import LOWEST, ExistingStream
from penstock.streams.sql.row_batch import Row, headers_text
from penstock.streams.sql.topic_tables import TableStream, TopicSettings

SCHEMA: Final = Schema(
    what="topics",
    version=1,
    version_table="penstock_topic_schema",
    statements=(
        """CREATE TABLE penstock_topic_partition (
            topic TEXT NOT NULL COLLATE NOCASE, partition INTEGER NOT NULL, next_id INTEGER NOT NULL,
            PRIMARY KEY (topic, partition)) WITHOUT ROWID""",
    ),
)
COLUMNS: Final = 6
"""The number of columns of a topic's table."""
ROWS_AT_ONCE: Final = 50
"""Rows in one INSERT. A statement costs more than a row: the table has a trigger, so SQLite makes a savepoint for each
statement, and Python releases the GIL for it, which another busy thread then holds for milliseconds."""
NOW_MS: Final = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@dataclass(frozen=True, slots=True)
class SqliteSettings(TopicSettings):
    """Settings of `sqlite:` URLs."""

    poll_interval_s: float = 0.05
    """How often a waiting reader looks for what other processes wrote: latency against CPU."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """FULL: what is acknowledged survives a power failure (an fsync for each batch). NORMAL: a killed process only."""
    busy_timeout_s: float = 30.0
    """How long an append waits for another writer of the file before it fails."""

    def __post_init__(self) -> None:
        TopicSettings.__post_init__(self)
        if self.poll_interval_s <= 0 or self.busy_timeout_s <= 0:
            raise ConfigError("poll_interval_s and busy_timeout_s must be positive")


def open_sqlite(url: str, options: Mapping[str, Any]) -> Stream:
    """The stream of a `sqlite:` URL."""
    parts = parse_backend_url(url)
    settings = settings_of(parts, SqliteSettings, options)
    if url.partition(":")[2].startswith("//"):
        raise UrlError(f"{url!r}: write the path right after the colon, as in sqlite:./x.db or sqlite:/var/x.db")
    if not parts.path or parts.path == ":memory:":
        raise UrlError(f"{url!r} names no file: write sqlite:./events.db; memory:NAME is a stream in memory")
    wakeups = Wakeups()
    if settings.id_column:
        return ExistingStream(
            url,
            SqliteRows(parts.path, settings),
            wakeups,
            checkpoint_url=f"sqlite:{parts.path}.checkpoints",
            poll_interval_s=settings.poll_interval_s,
            settings=settings,
        )
    return TableStream(
        url,
        SqliteTopics(parts.path, settings),
        wakeups,
        checkpoint_url=f"sqlite:{parts.path}",
        poll_interval_s=settings.poll_interval_s,
        max_record_bytes=settings.max_record_bytes,
    )


class SqliteTopics:
    """`TopicTables` in a SQLite file."""

    def __init__(self, path: str, settings: SqliteSettings) -> None:
        self.where = f"the SQLite database {path}"
        self._path = path
        self._settings = settings
        self._opening = threading.Lock()
        self._opened: SqliteDatabase[sqlite3.Connection] | None = None
        self._is_closed = False

    def check(self) -> None:
        self._database()

    def names(self) -> list[str]:
        return [name for (name,) in self._read("SELECT DISTINCT topic FROM penstock_topic_partition ORDER BY topic")]

    def create(self, topic: str, partitions: int) -> None:
        table = quoted(topic)
        with self._transaction() as cursor:
            made = "SELECT type FROM sqlite_schema WHERE name = ? COLLATE NOCASE"
            if cursor.execute(made, (topic,)).fetchone() is not None:
                raise TopicExistsError(f"{self.where} already has a table or topic {topic!r}")
            cursor.execute(
                f"""CREATE TABLE {table} (
                    partition INTEGER NOT NULL DEFAULT 0, id INTEGER, key BLOB, value BLOB, headers TEXT,
                    timestamp_ms INTEGER NOT NULL DEFAULT ({NOW_MS}))"""
            )
            cursor.execute(f"CREATE UNIQUE INDEX {quoted('penstock_' + topic)} ON {table} (partition, id)")
            # Gives rows of other programs their offsets. Ours come with them.
            cursor.execute(
                f"""CREATE TRIGGER {quoted("penstock_id_" + topic)} AFTER INSERT ON {table} WHEN NEW.id IS NULL BEGIN
                    SELECT RAISE(ABORT, 'the topic has no such partition') WHERE NOT EXISTS (
                        SELECT 1 FROM penstock_topic_partition
                        WHERE topic = {_literal(topic)} AND partition = NEW.partition);
                    UPDATE {table} SET id = (
                        SELECT next_id FROM penstock_topic_partition
                        WHERE topic = {_literal(topic)} AND partition = NEW.partition) WHERE rowid = NEW.rowid;
                    UPDATE penstock_topic_partition SET next_id = next_id + 1
                        WHERE topic = {_literal(topic)} AND partition = NEW.partition;
                    END"""
            )
            rows = [(topic, partition) for partition in range(partitions)]
            cursor.executemany("INSERT INTO penstock_topic_partition VALUES (?, ?, 0)", rows)

    def drop(self, topic: str) -> bool:
        with self._transaction() as cursor:
            cursor.execute("DELETE FROM penstock_topic_partition WHERE topic = ?", (topic,))
            is_there = cursor.rowcount > 0
            if is_there:
                cursor.execute(f"DROP TABLE {quoted(topic)}")
        return is_there

    def partition_count(self, topic: str) -> int:
        [(count,)] = self._read("SELECT count(*) FROM penstock_topic_partition WHERE topic = ?", (topic,))
        return int(count)

    def rows(self, topic: str, partition: int, start: Pointer, limit: int) -> list[Row]:
        sql = f"""SELECT id, CAST(key AS BLOB), CAST(value AS BLOB), headers, timestamp_ms FROM {quoted(topic)}
            WHERE partition = ? AND id >= ? ORDER BY id LIMIT ?"""
        return self._read(sql, (partition, start, limit), topic)

    def fetch(self, topic: str, partition: int, start: Pointer, limit: int) -> tuple[Pointer | None, list[Row]]:
        rows = self._read(
            f"""SELECT r.id, CAST(r.key AS BLOB), CAST(r.value AS BLOB), r.headers, r.timestamp_ms, p.next_id
            FROM penstock_topic_partition p
            LEFT JOIN (SELECT * FROM {quoted(topic)} WHERE partition = ?1 AND id >= ?2 ORDER BY id LIMIT ?3) r
            WHERE p.topic = ?4 AND p.partition = ?1 ORDER BY r.id""",
            (partition, max(0, start), limit, topic),
            topic,
        )
        if not rows:
            return None, []
        return rows[0][5], [row[:5] for row in rows] if rows[0][0] is not None else []

    def span(self, topic: str, partition: int) -> tuple[Pointer | None, Pointer] | None:
        rows = self._read(
            f"""SELECT (SELECT min(id) FROM {quoted(topic)} WHERE partition = ?1), next_id
            FROM penstock_topic_partition WHERE topic = ?2 AND partition = ?1""",
            (partition, topic),
            topic,
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def at_time(self, topic: str, partition: int, time_ms: int) -> Pointer | None:
        sql = f"SELECT min(id) FROM {quoted(topic)} WHERE partition = ? AND timestamp_ms >= ?"
        [(found,)] = self._read(sql, (partition, time_ms), topic)
        return None if found is None else int(found)

    def insert(self, topic: str, records: Mapping[int, Sequence[NewRecord]]) -> dict[int, Pointer]:
        now_ms = time.time_ns() // 1_000_000
        found: dict[int, Pointer] = {}
        with self._transaction() as cursor:
            for partition, appended in records.items():
                counter = "SELECT next_id FROM penstock_topic_partition WHERE topic = ? AND partition = ?"
                row = cursor.execute(counter, (topic, partition)).fetchone()
                if row is None:
                    continue
                found[partition] = first = row[0]
                values: list[Any] = [None] * (COLUMNS * len(appended))
                values[0::COLUMNS] = range(first, first + len(appended))
                values[1::COLUMNS] = itertools.repeat(partition, len(appended))
                values[2::COLUMNS] = [each.key for each in appended]
                values[3::COLUMNS] = [each.value for each in appended]
                values[4::COLUMNS] = [headers_text(each.headers) if each.headers else None for each in appended]
                values[5::COLUMNS] = [now_ms if each.timestamp_ms is None else each.timestamp_ms for each in appended]
                rest = len(values) - len(values) % (COLUMNS * ROWS_AT_ONCE)
                for rows, begin, end in ((ROWS_AT_ONCE, 0, rest), (1, rest, len(values))):
                    width = COLUMNS * rows
                    steps = range(begin, end, width)
                    cursor.executemany(_insertion(topic, rows), (tuple(values[at : at + width]) for at in steps))
                cursor.execute(
                    "UPDATE penstock_topic_partition SET next_id = ? WHERE topic = ? AND partition = ?",
                    (first + len(appended), topic, partition),
                )
        return found

    def close(self) -> None:
        with self._opening:
            self._is_closed = True
            if self._opened is not None:
                self._opened.close()

    def _database(self) -> SqliteDatabase[sqlite3.Connection]:
        with self._opening:
            if self._is_closed:
                raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again")
            if self._opened is None:
                with _stream_errors():
                    self._opened = SqliteDatabase(
                        self._path,
                        SCHEMA,
                        synchronous=self._settings.synchronous,
                        busy_timeout_s=self._settings.busy_timeout_s,
                    )
            return self._opened

    def _read(self, sql: str, values: Any = (), topic: str = "") -> Rows:
        with _stream_errors(topic, self.where):
            return self._database().read(sql, values)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with _stream_errors(), self._database().transaction() as cursor:
            yield cursor


def _insertion(topic: str, rows: int) -> str:
    return f"INSERT INTO {quoted(topic)} (id, partition, key, value, headers, timestamp_ms) VALUES " + ", ".join(
        ["(?, ?, ?, ?, ?, ?)"] * rows
    )


@contextmanager
def _stream_errors(topic: str = "", where: str = "") -> Iterator[None]:
    """Turn the errors of a store into those of a stream."""
    try:
        yield
    except StoreUnavailableError as error:
        raise BrokerUnavailableError(str(error)) from error
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        raise UnknownTopicError(f"{where} has no topic {topic!r}: create it first") from error


class SqliteRows:
    """`RowSource` over a SQLite file, which is opened for reading only."""

    def __init__(self, path: str, settings: SqliteSettings) -> None:
        self.where = f"the SQLite database {path}"
        self._path = Path(path)
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._selects: dict[str, str] = {}
        """By table: the SELECT of its records."""

    def check(self) -> None:
        self._read("SELECT 1 FROM sqlite_schema")

    def names(self) -> list[str]:
        found = self._read("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        wanted = set(self._settings.wanted_columns)
        return [
            name
            for (name,) in found
            if is_topic_name(name)
            and not name.startswith(("sqlite_", "penstock_"))
            and wanted <= self._columns(name).keys()
        ]

    def check_table(self, table: str) -> None:
        if table in self._selects:
            return
        columns = self._columns(table)
        if not columns:
            raise UnknownTopicError(f"{self.where} has no table {table!r}")
        for name in self._settings.wanted_columns:
            if name not in columns:
                raise ConfigError(
                    f"table {table!r} in {self.where} has no column {name!r}; it has {', '.join(columns)}"
                )
        kind, is_key = columns[self._settings.id_column]
        if not (is_key and kind.upper() == "INTEGER") and not self._settings.trust_ids:
            raise ConfigError(
                f"{self._settings.id_column!r} of table {table!r} is not its INTEGER PRIMARY KEY, so SQLite does not "
                "give its values in order: choose that column, or set trust_ids=true if every row gets a larger id "
                "than all rows before it"
            )
        settings = self._settings
        values = settings.chosen_columns or list(columns)
        chosen = [settings.payload_column] if settings.payload_column else values
        key = quoted(settings.key_column) if settings.key_column else "NULL"
        self._selects[table] = (
            f"SELECT {quoted(settings.id_column)}, {key}, {self._time_ms()}, {', '.join(map(quoted, chosen))} "
            f"FROM {quoted(table)} "
        )

    def final_end(self, table: str, beyond: Pointer) -> Pointer:
        [(last,)] = self._read(f"SELECT max({quoted(self._settings.id_column)}) FROM {quoted(table)}")
        return LOWEST if last is None else int(last) + 1

    def fetch(self, table: str, start: Pointer, end: Pointer, limit: int) -> list[Row]:
        id = quoted(self._settings.id_column)
        sql = f"{self._selects[table]} WHERE {id} >= ? AND {id} < ? ORDER BY {id} LIMIT ?"
        is_payload = bool(self._settings.payload_column)
        with self._lock:
            cursor = self._execute(sql, (start, end, limit))
            names = [each[0] for each in cursor.description[3:]]
            rows = cursor.fetchall()
        return [
            (row[0], _bytes(row[1]), _bytes(row[3]) if is_payload else _object(names, row[3:]), None, row[2])
            for row in rows
        ]

    def first(self, table: str) -> Pointer | None:
        [(found,)] = self._read(f"SELECT min({quoted(self._settings.id_column)}) FROM {quoted(table)}")
        return None if found is None else int(found)

    def last_given(self, table: str) -> Pointer | None:
        """Known for tables with AUTOINCREMENT."""
        if not self._read("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'"):
            return None
        rows = self._read("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,))
        return int(rows[0][0]) if rows else None

    def at_time(self, table: str, time_ms: int) -> Pointer | None:
        sql = f"SELECT min({quoted(self._settings.id_column)}) FROM {quoted(table)} WHERE {self._time_ms()} >= ?"
        [(found,)] = self._read(sql, (time_ms,))
        return None if found is None else int(found)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _time_ms(self) -> str:
        if not self._settings.timestamp_column:
            return "NULL"
        column = quoted(self._settings.timestamp_column)
        parsed = f"CAST(round((julianday({column}) - 2440587.5) * 86400000.0) AS INTEGER)"
        return f"CASE typeof({column}) WHEN 'text' THEN {parsed} ELSE CAST({column} AS INTEGER) END"

    def _columns(self, table: str) -> dict[str, tuple[str, bool]]:
        """By name: the declared type, and whether it is the primary key by itself."""
        rows = self._read("SELECT name, type, pk FROM pragma_table_info(?)", (table,))
        is_single = sum(bool(pk) for _, _, pk in rows) == 1
        return {name: (kind, bool(pk) and is_single) for name, kind, pk in rows}

    def _read(self, sql: str, values: Any = ()) -> Rows:
        with self._lock:
            return self._execute(sql, values).fetchall()

    def _execute(self, sql: str, values: Any) -> sqlite3.Cursor:
        """The caller holds the lock."""
        try:
            if self._connection is None:
                if not self._path.is_file():
                    raise ConfigError(f"{self.where} does not exist: existing tables are read, so check the path")
                self._connection = connect(self._path, self._settings.busy_timeout_s)
                self._connection.execute("PRAGMA query_only = ON")
            return self._connection.execute(sql, values)
        except sqlite3.ProgrammingError as error:
            raise ConnectionClosedError(f"the connection to {self.where} is closed: connect again") from error
        except sqlite3.DatabaseError as error:
            if "no such table" in str(error):
                self._selects.clear()
                raise UnknownTopicError(f"{self.where}: {error}") from error
            raise BrokerUnavailableError(f"{self.where} cannot be read: {error}") from error


def quoted(name: str) -> str:
    """A name of a table or column for a statement."""
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(value).encode()


def _object(names: list[str], values: tuple[Any, ...]) -> bytes:
    """A row as a JSON object. Blobs are base64."""
    fields = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in zip(names, values, strict=True)
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
