"""SQLite as a source: triggers write each change to a table of the same database, in the transaction of the change.

The triggers come first, then the snapshot, then the changes since the triggers: see `postgres.source` for why the
result is right. What is stored in the stream is deleted from the table of changes.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.errors import ChangesLostError, ConfigError, SourceUnavailableError
from penstock.tables.cdc.records import Moment, Row, SnapshotWriter, TableRecords, check_topics, text_json, topic_name
from penstock.tables.cdc.snapshots import (
    pending_tables,
    refresh_batch,
    refreshed_table,
    show_tables,
    snapshot_batches,
    take_request,
)
from penstock.tables.cdc.source import (
    CAPTURE,
    LEFT,
    POSITION,
    TABLE,
    CaptureProgress,
    Described,
    Saved,
    SavedTable,
    SnapshotMode,
    SourceBatch,
    SourceOptions,
    chosen_tables,
    saved_tables,
    update_tables,
)

logger = logging.getLogger(__name__)

_BUSY_S: Final = 30.0
_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.25
_SCHEMA: Final = "main"
_PAIRS: Final = 63
"""Columns in a call of json_object: SQLite's functions take 127 arguments."""
_WHEN_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


class SavedSqlite(msgspec.Struct, frozen=True):
    """What a capture is."""

    source: str
    form: str
    prefix: str
    is_only: bool = False


class SavedSequence(msgspec.Struct, frozen=True):
    sequence: int
    """The number of the last change that is stored."""


@dataclass(frozen=True, slots=True)
class SqliteTable:
    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and declared type."""
    key: tuple[str, ...]
    triggers: Mapping[str, str]
    """The triggers that it must have, by name."""

    @property
    def full_name(self) -> str:
        return f"{_SCHEMA}.{self.name}"


class SqliteSource:
    """Captures tables of one SQLite file."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        path = url.partition(":")[2]
        if not path or path.startswith("//") or "?" in path:
            raise ConfigError(f"{url!r}: write the path of the database right after the colon, as in sqlite:./app.db")
        self._path = Path(path).expanduser().absolute()
        self._options = options
        self.progress = CaptureProgress()
        self._changes = f"penstock_changes_{options.name}"
        self._database: sqlite3.Connection | None = None
        self._tables: dict[str, SqliteTable] = {}
        self._saved: dict[str, SavedTable] = {}
        self._is_again = options.snapshot is SnapshotMode.AGAIN
        self._schema_version = -1

    @property
    def identity(self) -> str:
        return f"sqlite:{self._path}"

    @property
    def prefix(self) -> str:
        return self._options.prefix or self._path.stem

    def topics(self) -> Mapping[str, str]:
        self.close()
        if not self._path.exists():
            raise ConfigError(f"there is no SQLite database {self._path}")
        with self._translated():
            self._database = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._find_tables()
        if not os.access(self._path, os.W_OK) and self._options.snapshot is not SnapshotMode.ONLY:
            raise ConfigError(f"{self._path} cannot be written, but the capture must create triggers in it")
        topics = {name: topic_name(self.prefix, _SCHEMA, table.name) for name, table in self._tables.items()}
        check_topics(topics)
        return topics

    def batches(self, saved: Saved, stopping: threading.Event) -> Iterator[SourceBatch]:
        with self._translated():
            yield from self._set_up(saved)
            yield from self._snapshot(stopping)
            if self._options.snapshot is not SnapshotMode.ONLY:
                yield from self._stream(stopping)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    @property
    def _sql(self) -> sqlite3.Connection:
        assert self._database is not None, "topics() comes first"
        return self._database

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise SourceUnavailableError(
                    f"{self._path} was locked by another program for {_BUSY_S:g} s: {error}"
                ) from error
            raise ConfigError(f"{self._path} refuses a request: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"{self._path} cannot be captured: {error}") from error

    # Setting up

    def _find_tables(self) -> None:
        rows = self._sql.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
            "AND name NOT LIKE 'penstock\\_changes\\_%' ESCAPE '\\' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
        )
        names = chosen_tables(self._options.tables, [f"{_SCHEMA}.{name}" for (name,) in rows], _SCHEMA)
        self._tables = {name: self._described(name.partition(".")[2]) for name in names}
        (self._schema_version,) = self._sql.execute("PRAGMA schema_version").fetchone()

    def _described(self, name: str) -> SqliteTable:
        rows = self._sql.execute(f"PRAGMA table_info({_quoted(name)})").fetchall()
        columns = tuple((column, kind) for _, column, kind, *_ in rows)
        key = tuple(row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5])
        if not key:
            raise ConfigError(
                f"table {name} has no PRIMARY KEY, which the records of its topic need: create a table with one and "
                "copy the rows, or leave it out"
            )
        if self._sql.execute(
            f"SELECT 1 FROM pragma_index_list({_quoted(name)}) WHERE \"unique\" AND origin <> 'pk'"
        ).fetchone():
            logger.warning(
                "table %s has a UNIQUE constraint besides its key: a row that INSERT OR REPLACE removes because of it "
                "is not captured, unless the writer sets PRAGMA recursive_triggers = ON",
                name,
            )
        return SqliteTable(name, columns, key, self._triggers(name, [column for column, _ in columns]))

    def _triggers(self, table: str, columns: list[str]) -> dict[str, str]:
        def image(row: str) -> str:
            pairs = [f"{_text(each)}, quote({row}.{_quoted(each)})" for each in columns]
            parts = [
                f"json_object({', '.join(pairs[start : start + _PAIRS])})" for start in range(0, len(pairs), _PAIRS)
            ]
            return parts[0] if len(parts) == 1 else f"json_array({', '.join(parts)})"

        found = {}
        for event, op, old, new in (
            ("INSERT", "c", "NULL", image("NEW")),
            ("UPDATE", "u", image("OLD"), image("NEW")),
            ("DELETE", "d", image("OLD"), "NULL"),
        ):
            name = f"{self._changes}_{table}_{event.lower()}"
            found[name] = (
                f"CREATE TRIGGER {_quoted(name)} AFTER {event} ON {_quoted(table)} BEGIN INSERT INTO "
                f'{_quoted(self._changes)} ("table", op, old, new, at_ms) '
                f"VALUES ({_text(table)}, '{op}', {old}, {new}, {_WHEN_MS}); END"
            )
        return found

    def _set_up(self, saved: Saved) -> Iterator[SourceBatch]:
        known = msgspec.json.decode(saved[CAPTURE], type=SavedSqlite) if CAPTURE in saved else None
        is_only = self._options.snapshot is SnapshotMode.ONLY
        wanted = SavedSqlite(self.identity, str(self._options.form), self.prefix, is_only)
        if known is not None and not self._is_again and msgspec.structs.replace(known, is_only=is_only) != wanted:
            raise ConfigError(
                f"the capture {self._options.name!r} in this stream is {known}, not {wanted}: choose another --name, "
                "or start over with --snapshot again"
            )
        self._saved = saved_tables(saved)
        position = msgspec.json.decode(saved[POSITION], type=SavedSequence) if POSITION in saved else None
        is_new = known is None or position is None or self._is_again or (known.is_only and not is_only)
        self._sequence = 0
        if not is_only and is_new:
            self._sequence = self._install(is_new=True)
        elif not is_only and position is not None:
            self._sequence = position.sequence
            self._check_kept()
        outdated = set() if is_only or is_new else self._outdated()
        state = self._renew(outdated)
        state |= update_tables(self._saved, self._description(), self._options.snapshot, is_new=is_new)
        yield SourceBatch([], {CAPTURE: msgspec.json.encode(wanted), **self._position_state(), **state})
        self._is_again = False  # once that is stored: until then, another attempt begins anew
        if outdated:
            yield from self._drain(self._install(is_new=False))

    def _description(self) -> Described:
        return {name: (list(table.columns), list(table.key)) for name, table in self._tables.items()}

    def _outdated(self) -> set[str]:
        """The tables whose triggers are missing, or were made for other columns."""
        there = self._existing_triggers()
        return {
            full_name
            for full_name, table in self._tables.items()
            if any(there.get(name) != sql for name, sql in table.triggers.items())
        }

    def _existing_triggers(self) -> dict[str, str]:
        return dict(self._sql.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))

    def _install(self, *, is_new: bool) -> int:
        """Create what is missing, in one transaction. Returns the number of the last change before it."""
        with self._transaction():
            there = self._existing_triggers()
            self._sql.execute(
                f"CREATE TABLE IF NOT EXISTS {_quoted(self._changes)} (sequence INTEGER PRIMARY KEY AUTOINCREMENT, "
                '"table" TEXT NOT NULL, op TEXT NOT NULL, old TEXT, new TEXT, at_ms INTEGER NOT NULL)'
            )
            if is_new:
                self._sql.execute(f"DELETE FROM {_quoted(self._changes)}")
            wanted: set[str] = set()
            for table in self._tables.values():
                wanted |= table.triggers.keys()
                for name, sql in table.triggers.items():
                    if there.get(name) != sql:
                        self._sql.execute(f"DROP TRIGGER IF EXISTS {_quoted(name)}")
                        self._sql.execute(sql)
            for name in there.keys() - wanted:
                if name.startswith(f"{self._changes}_"):
                    self._sql.execute(f"DROP TRIGGER {_quoted(name)}")
            last = self._last_sequence()
        (self._schema_version,) = self._sql.execute("PRAGMA schema_version").fetchone()
        return last

    def _renew(self, outdated: set[str]) -> dict[str, bytes | None]:
        """Note that tables must be read again whose columns have changed, or whose triggers were missing.

        This is saved before the triggers are replaced. Then the changes of the old triggers are stored, then the rows:
        the other way round, an old change would follow a newer row.
        """
        state: dict[str, bytes | None] = {}
        for name in outdated & self._saved.keys():
            table, before = self._tables[name], self._saved[name]
            if before.snapshot == LEFT:
                continue
            renewed = before.read_again(list(table.columns), list(table.key))
            self._saved[name] = renewed
            state[TABLE + name] = msgspec.json.encode(renewed)
        return state

    def _check_kept(self) -> None:
        there = self._sql.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (self._changes,)).fetchone()
        last = self._last_sequence() if there else -1
        if last < self._sequence:
            raise ChangesLostError(
                f"{self._path} no longer has the table {self._changes!r} with the changes after {self._sequence}, or "
                "is an older copy: changes since then are lost. Take a new snapshot of all tables with --snapshot again"
            )

    def _last_sequence(self) -> int:
        row = self._sql.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (self._changes,)).fetchone()
        return 0 if row is None else int(row[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._sql.execute("ROLLBACK")
            raise
        self._sql.execute("COMMIT")

    # Rows and changes

    def _snapshot(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        show_tables(self.progress, dict.fromkeys(self._tables), self._saved)
        for name in pending_tables(self._tables, self._saved):
            self.progress.phase = "snapshot"
            saved = self._saved[name]
            records = self._records_of(name, [column for column, _ in saved.columns], saved.key)
            yield from snapshot_batches(
                name,
                self._saved,
                records,
                self._range_reader(self._tables[name]),
                lambda: Moment(_now_ms(), self._sequence, b"", is_snapshot=True),
                self._options.snapshot_rows,
                self.progress,
                stopping,
            )

    def _range_reader(self, table: SqliteTable) -> Any:
        columns = ", ".join(_quoted(column) for column, _ in table.columns)
        keys = ", ".join(map(_quoted, table.key))
        places = [[column for column, _ in table.columns].index(each) for each in table.key]

        def read(after: list[str] | None, limit: int, write: SnapshotWriter, rows: list[Row]) -> list[str] | None:
            marks = ", ".join("?" for _ in table.key)
            where = "" if after is None else f" WHERE ({keys}) > ({marks})"
            query = f"SELECT {columns} FROM {_quoted(table.name)}{where} ORDER BY {keys} LIMIT {limit}"
            last: tuple[Any, ...] = ()
            for last in self._sql.execute(query, [_parsed(each) for each in after or ()]):
                rows.append(write([json_value(value) for value in last]))
            if any(last[place] is None for place in places if last):
                raise ConfigError(f"table {table.name} has a row with NULL in its key: delete it, or declare NOT NULL")
            return [_literal(last[place]) for place in places] if last else after

        return read

    def _stream(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        self.progress.phase = "streaming"
        pause_s = _POLL_S
        while not stopping.is_set():
            (version,) = self._sql.execute("PRAGMA schema_version").fetchone()
            sequence = self._sequence
            yield from self._drain(None)
            yield from self._refresh()
            if self._sequence > sequence or refreshed_table(self._tables, self._saved) is not None:
                pause_s = _POLL_S
            elif version != self._schema_version:
                yield from self._follow_schema(stopping)
            else:
                yield SourceBatch()
                stopping.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def refresh(self, table: str, request: str) -> bool:
        return take_request(self._saved, table, request)

    def _refresh(self) -> Iterator[SourceBatch]:
        """The next rows of a table that is read again: what is stored is committed, so they are no older."""
        name = refreshed_table(self._tables, self._saved)
        if name is not None:
            saved = self._saved[name]
            records = self._records_of(name, [column for column, _ in saved.columns], saved.key)
            at = Moment(_now_ms(), self._sequence, b"", is_snapshot=True)
            read, limit = self._range_reader(self._tables[name]), self._options.snapshot_rows
            batch, refreshed = refresh_batch(name, self._saved, records, read, at, limit)
            yield batch
            self._saved[name] = refreshed
            self.progress.snapshot_rows += len(batch.records)

    def _drain(self, last: int | None) -> Iterator[SourceBatch]:
        """One batch of changes; with `last`, all up to that one."""
        query = f"SELECT * FROM {_quoted(self._changes)} WHERE sequence > ? ORDER BY sequence LIMIT ?"
        while True:  # ends: with `last`, each batch moves on towards it
            rows = self._sql.execute(query, (self._sequence, self._options.batch_rows)).fetchall()
            if rows:
                yield self._batch(rows)
                self._sequence = rows[-1][0]
                self._confirm(len(rows), rows[-1][5])
            if last is None or not rows or self._sequence >= last:
                return

    def _batch(self, rows: list[Any]) -> SourceBatch:
        records: list[Row] = []
        for sequence, name, _, old_text, new_text, at_ms in rows:
            full_name = f"{_SCHEMA}.{name}"
            if full_name not in self._tables:
                continue
            old = _image(old_text)
            new = _image(new_text)
            at = Moment(at_ms, sequence, b"")
            table = self._records_of(full_name, list(new or old or ()), self._saved[full_name].key)
            before = None if old is None else list(old.values())
            after = None if new is None else list(new.values())
            old_key = None if before is None else table.key_bytes(before)
            if before is not None and after is not None and old_key == table.key_bytes(after):
                records.append(table.updated(after, table.row_json(before), at))
                continue
            if before is not None and old_key is not None:
                records += table.deleted(old_key, table.row_json(before), at)
            if after is not None:
                records.append(table.created(after, at))
        sequence = rows[-1][0]
        return SourceBatch(records, {POSITION: msgspec.json.encode(SavedSequence(sequence))})

    def _confirm(self, count: int, at_ms: int) -> None:
        """Delete changes that are stored in the stream."""
        self.progress.changes += count
        self.progress.position = str(self._sequence)
        self.progress.last_change_ms = at_ms
        self._sql.execute(f"DELETE FROM {_quoted(self._changes)} WHERE sequence <= ?", (self._sequence,))

    def _follow_schema(self, stopping: threading.Event) -> Iterator[SourceBatch]:
        """Someone has changed the schema: renew triggers, and read tables again that have other columns now."""
        self._find_tables()
        outdated = self._outdated()
        state = self._renew(outdated)
        state |= update_tables(self._saved, self._description(), self._options.snapshot, is_new=False)
        if state:
            yield SourceBatch([], state)
        if outdated:
            yield from self._drain(self._install(is_new=False))
        yield from self._snapshot(stopping)
        self.progress.phase = "streaming"

    def _position_state(self) -> dict[str, bytes | None]:
        return {POSITION: msgspec.json.encode(SavedSequence(self._sequence))}

    def _records_of(self, full_name: str, columns: list[str], key: list[str]) -> TableRecords:
        name = full_name.partition(".")[2]
        origin = {
            "connector": "sqlite",
            "name": self.prefix,
            "db": str(self._path.name),
            "schema": _SCHEMA,
            "table": name,
            "schemaVersion": self._saved[full_name].version,
        }
        topic = topic_name(self.prefix, _SCHEMA, name)
        return TableRecords(topic, columns, key, self._options.form, origin, "sequence", _now_ms)


def _image(text: str | None) -> dict[str, bytes] | None:
    """A row as the trigger wrote it: SQL literals by column, in an array of objects if there are many."""
    if text is None:
        return None
    image = msgspec.json.decode(text)
    parts = image if isinstance(image, list) else [image]
    return {column: json_value(_parsed(literal)) for part in parts for column, literal in part.items()}


def _parsed(literal: str) -> Any:
    """The value of an SQL literal that `quote()` has written."""
    if literal == "NULL":
        return None
    if literal.startswith("'"):
        return literal[1:-1].replace("''", "'")
    if literal.startswith("X'"):
        return bytes.fromhex(literal[2:-1])
    try:
        return int(literal)
    except ValueError:
        return float(literal)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return repr(value)


def json_value(value: Any) -> bytes:
    if value is None:
        return b"null"
    if isinstance(value, str):
        return text_json(value.encode())
    if isinstance(value, bytes):
        return b'"%b"' % base64.b64encode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return b'"Infinity"' if value > 0 else b'"-Infinity"'
    return repr(value).encode()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
