"""The rows of a table in a SQLite file, together with the pointers after them."""

from __future__ import annotations

import collections
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from penstock.databases import Schema
from penstock.databases.sqlite import SqliteDatabase, connect
from penstock.errors import ClosedError, ConfigError, SerdeError
from penstock.model import Batch, Pointer
from penstock.tables.changes import ChangeDecoder, Outcome
from penstock.tables.table.rows import Identity, Indexes, MemoryRows, TableChange

SCHEMA: Final = Schema(
    "rows",
    1,
    "penstock_table_version",
    (
        "CREATE TABLE penstock_table_source (name TEXT NOT NULL, format TEXT NOT NULL, indexes TEXT NOT NULL, "
        "topic TEXT, topic_id TEXT, rows INTEGER NOT NULL, fresh_ms INTEGER NOT NULL)",
        "CREATE TABLE penstock_table_pointers (partition INTEGER PRIMARY KEY, next TEXT NOT NULL)",
        "CREATE TABLE penstock_table_rows (key BLOB PRIMARY KEY, partition INTEGER NOT NULL, value BLOB NOT NULL) "
        "WITHOUT ROWID",
        "CREATE TABLE penstock_table_index (name TEXT NOT NULL, value BLOB NOT NULL, key BLOB NOT NULL, "
        "PRIMARY KEY (name, value, key)) WITHOUT ROWID",
    ),
)
_FIND: Final = "SELECT value FROM penstock_table_rows WHERE key = ?"
_PAGE: Final = "SELECT key, value FROM penstock_table_rows WHERE key > ? ORDER BY key LIMIT 1000"
_FIND_BY: Final = (
    "SELECT r.key, r.value FROM penstock_table_index i JOIN penstock_table_rows r ON r.key = i.key "
    "WHERE i.name = ? AND i.value = ? ORDER BY r.key"
)
_READERS: Final = 16
"""How many connections for lookups are kept between them."""
_MAPPED_BYTES: Final = 4 << 30
_CACHE_KIB: Final = 8 << 10

_Latest = dict[bytes, tuple[int, bytes | None]]
"""For each stored key its partition and, unless the row is deleted, the new value."""


class DiskRows:
    """Rows as they are in the topic, decoded when they are looked up. Each lookup takes a connection of its own.

    One process writes to the file. SQLite's write-ahead log is not synchronised for each batch: after a power cut the
    rows may be those of an earlier moment, together with the pointers of that moment.
    """

    def __init__(self, path: str, name: str, decoder: ChangeDecoder, format: str, indexes: Indexes) -> None:
        self._path = path
        self._decoder = decoder
        self._indexes = indexes
        self._database: SqliteDatabase[sqlite3.Connection] = SqliteDatabase(path, SCHEMA, synchronous="NORMAL")
        self._idle: collections.deque[sqlite3.Cursor] = collections.deque()
        self._closed = False
        try:
            self._open(name, format)
        except BaseException:
            self._database.close()
            raise

    def _open(self, name: str, format: str) -> None:
        indexes = ",".join(sorted(self._indexes.extracts))
        found = self._database.read(
            "SELECT name, format, indexes, topic, topic_id, rows, fresh_ms FROM penstock_table_source"
        )
        if found and found[0][0] != name:
            raise ConfigError(
                f"storage {self._path!r} has the rows of topic {found[0][0]!r}, not of {name!r}: choose another file"
            )
        self.identity: Identity | None = None
        self.fresh_ms = 0
        self._count = 0
        if found and found[0][1:3] == (format, indexes):
            *_, topic, topic_id, self._count, self.fresh_ms = found[0]
            self.identity = Identity(topic, topic_id) if topic is not None else None
        else:  # a new file, or rows that were stored in another way: they are read again
            with self._database.transaction() as cursor:
                self._empty(cursor)
                cursor.execute("DELETE FROM penstock_table_source")
                cursor.execute(
                    "INSERT INTO penstock_table_source VALUES (?, ?, ?, NULL, NULL, 0, 0)", (name, format, indexes)
                )
        self._pointers = {
            partition: int(next)
            for partition, next in self._database.read("SELECT partition, next FROM penstock_table_pointers")
        }

    def __getitem__(self, key: Any) -> Any:
        stored = self._decoder.stored_key(key)
        try:
            cursor = self._idle.pop()
        except IndexError:
            cursor = self._new_cursor()
        try:
            found = cursor.execute(_FIND, (stored,)).fetchall()
        except sqlite3.Error as error:
            cursor.connection.close()
            raise self._translated(error) from error
        self._give(cursor)
        if not found:
            raise KeyError(key)
        return self._decoder.row(found[0][0])

    def __len__(self) -> int:
        return self._count

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All rows in the order of their stored keys, a thousand at a time: each part is of one moment."""
        after = None
        while True:
            with self._cursor() as cursor:
                if after is None:
                    page = cursor.execute(
                        "SELECT key, value FROM penstock_table_rows ORDER BY key LIMIT 1000"
                    ).fetchall()
                else:
                    page = cursor.execute(_PAGE, (after,)).fetchall()
            if not page:
                return
            for stored, value in page:
                yield self._decoder.loaded_key(stored), self._decoder.row(value)
            after = page[-1][0]

    def stored_rows(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Each stored key with its partition and value."""
        rows: Iterator[tuple[bytes, int, bytes]]
        with self._cursor() as cursor:
            rows = cursor.execute("SELECT key, partition, value FROM penstock_table_rows")
            yield from rows

    def by(self, index: str, value: Any) -> dict[Any, Any]:
        self._indexes.require(index)
        with self._cursor() as cursor:
            found = cursor.execute(_FIND_BY, (index, _index_bytes(value))).fetchall()
        return {self._decoder.loaded_key(stored): self._decoder.row(data) for stored, data in found}

    def pointers(self) -> dict[int, Pointer]:
        return dict(self._pointers)

    def apply(self, batches: Sequence[Batch], now_ms: int, *, wanted: bool) -> list[TableChange]:
        changes: list[TableChange] = []
        next = {batch.partition: batch.next for batch in batches}
        count = self._count
        with self._database.transaction() as cursor:
            self._move(cursor, next)
            latest: _Latest = {}
            for batch in batches:
                partition = batch.partition
                keys, values = batch.keys(), batch.values()
                pointers, times = (batch.pointers(), batch.timestamps()) if wanted else ((), ())
                for at in range(len(keys)):
                    raw_key = keys[at]
                    outcome, data = self._decoder.outcome(raw_key, values[at])
                    if outcome is Outcome.NOTHING:
                        continue
                    if outcome is Outcome.TRUNCATE:
                        count += self._write(cursor, latest)
                        latest = {}
                        truncated = self._rows_of(cursor, partition) if wanted else ()
                        count -= self._truncate(cursor, partition)
                        for key, row in truncated:
                            changes.append(TableChange(key, row, None, partition, pointers[at], times[at]))
                        continue
                    assert raw_key is not None
                    key = self._decoder.key(raw_key)
                    stored = self._decoder.stored_key(key)
                    if wanted:
                        before = self._row_or_none(self._newest(cursor, latest, stored))
                        after = self._row_or_none(data)
                        if before is not None or after is not None:
                            changes.append(TableChange(key, before, after, partition, pointers[at], times[at]))
                    latest[stored] = (partition, data)
            count += self._write(cursor, latest)
            cursor.execute("UPDATE penstock_table_source SET rows = ?", (count,))
        self._count = count
        self._pointers.update(next)
        return changes

    def touch(self, now_ms: int) -> None:
        self._database.write("UPDATE penstock_table_source SET fresh_ms = ?", (now_ms,))
        self.fresh_ms = now_ms

    def restart(self, identity: Identity) -> None:
        with self._database.transaction() as cursor:
            self._empty(cursor)
            cursor.execute(
                "UPDATE penstock_table_source SET topic = ?, topic_id = ?, rows = 0, fresh_ms = 0",
                (identity.topic, identity.topic_id),
            )
        self.identity, self.fresh_ms, self._count = identity, 0, 0
        self._pointers.clear()

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().connection.close()
        self._database.close()

    def _move(self, cursor: sqlite3.Cursor, next: dict[int, Pointer]) -> None:
        """Save the pointers, unless another process has moved them."""
        saved = dict(cursor.execute("SELECT partition, next FROM penstock_table_pointers").fetchall())
        if saved != {partition: str(pointer) for partition, pointer in self._pointers.items()}:
            raise ConfigError(
                f"storage {self._path!r} is written by another table, in this process or another one: give each table "
                "a file of its own"
            )
        cursor.executemany(
            "INSERT INTO penstock_table_pointers VALUES (?, ?) ON CONFLICT DO UPDATE SET next = excluded.next",
            [(partition, str(pointer)) for partition, pointer in next.items()],
        )

    def _write(self, cursor: sqlite3.Cursor, latest: _Latest) -> int:
        """Write the rows, and return how many more there are."""
        if not latest:
            return 0
        if self._indexes.extracts:
            self._reindex(cursor, latest)
        ordered = sorted(latest.items())
        added = 0
        new = [(stored, partition, data) for stored, (partition, data) in ordered if data is not None]
        gone = [(stored,) for stored, (_, data) in ordered if data is None]
        if new:
            cursor.executemany("INSERT OR IGNORE INTO penstock_table_rows VALUES (?, ?, ?)", new)
            added = cursor.rowcount
            if added < len(new):
                cursor.executemany(
                    "UPDATE penstock_table_rows SET partition = ?2, value = ?3 WHERE key = ?1 AND (value <> ?3 OR "
                    "partition <> ?2)",
                    new,
                )
        if gone:
            cursor.executemany("DELETE FROM penstock_table_rows WHERE key = ?", gone)
            added -= cursor.rowcount
        return added

    def _reindex(self, cursor: sqlite3.Cursor, latest: _Latest) -> None:
        out: list[tuple[str, bytes, bytes]] = []
        into: list[tuple[str, bytes, bytes]] = []
        for stored, (_, data) in latest.items():
            before, after = self._index_entries(stored, self._stored(cursor, stored)), self._index_entries(stored, data)
            out += before - after
            into += after - before
        cursor.executemany("DELETE FROM penstock_table_index WHERE name = ? AND value = ? AND key = ?", out)
        cursor.executemany("INSERT OR IGNORE INTO penstock_table_index VALUES (?, ?, ?)", into)

    def _index_entries(self, stored: bytes, data: bytes | None) -> set[tuple[str, bytes, bytes]]:
        row = self._row_or_none(data)
        if row is None:
            return set()
        return {(name, _index_bytes(value), stored) for name, value in self._indexes.values(row).items()}

    def _row_or_none(self, data: bytes | None) -> Any:
        """The row; None, too, if it cannot be decoded: whoever looks it up gets the error."""
        try:
            return None if data is None else self._decoder.row(data)
        except SerdeError:
            return None

    def _newest(self, cursor: sqlite3.Cursor, latest: _Latest, stored: bytes) -> bytes | None:
        return latest[stored][1] if stored in latest else self._stored(cursor, stored)

    def _stored(self, cursor: sqlite3.Cursor, stored: bytes) -> bytes | None:
        found = cursor.execute(_FIND, (stored,)).fetchall()
        return found[0][0] if found else None

    def _rows_of(self, cursor: sqlite3.Cursor, partition: int) -> list[tuple[Any, Any]]:
        found = cursor.execute(
            "SELECT key, value FROM penstock_table_rows WHERE partition = ?", (partition,)
        ).fetchall()
        return [(self._decoder.loaded_key(stored), self._row_or_none(data)) for stored, data in found]

    def _truncate(self, cursor: sqlite3.Cursor, partition: int) -> int:
        keys = "SELECT key FROM penstock_table_rows WHERE partition = ?"
        cursor.execute(f"DELETE FROM penstock_table_index WHERE key IN ({keys})", (partition,))
        cursor.execute("DELETE FROM penstock_table_rows WHERE partition = ?", (partition,))
        return cursor.rowcount

    def _empty(self, cursor: sqlite3.Cursor) -> None:
        for table in ("rows", "index", "pointers"):
            cursor.execute(f"DELETE FROM penstock_table_{table}")

    @contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        """A cursor that no other thread uses meanwhile."""
        try:
            cursor = self._idle.pop()
        except IndexError:
            cursor = self._new_cursor()
        try:
            yield cursor
        except sqlite3.Error as error:
            cursor.connection.close()
            raise self._translated(error) from error
        self._give(cursor)

    def _new_cursor(self) -> sqlite3.Cursor:
        if self._closed:
            raise ClosedError(f"the table in {self._path!r} is closed: open another")
        connection: sqlite3.Connection = connect(self._path)
        connection.execute("PRAGMA query_only = true")
        connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        return connection.cursor()

    def _give(self, cursor: sqlite3.Cursor) -> None:
        if self._closed or len(self._idle) >= _READERS:
            cursor.connection.close()
        else:
            self._idle.append(cursor)

    def _translated(self, error: sqlite3.Error) -> Exception:
        return self._database.translated(error)


class KeptRows(MemoryRows):
    """Rows in memory that a file keeps for the next start."""

    def __init__(self, stored: DiskRows, decoder: ChangeDecoder, indexes: Indexes) -> None:
        super().__init__(decoder, indexes)
        self._stored = stored
        try:
            self.load(((decoder.loaded_key(key), partition, data) for key, partition, data in stored.stored_rows()))
        except BaseException:
            stored.close()
            raise
        self._pointers = stored.pointers()
        self.identity, self.fresh_ms = stored.identity, stored.fresh_ms

    def apply(self, batches: Sequence[Batch], now_ms: int, *, wanted: bool) -> list[TableChange]:
        self._stored.apply(batches, now_ms, wanted=False)  # first: if it fails, nothing has changed
        return super().apply(batches, now_ms, wanted=wanted)

    def touch(self, now_ms: int) -> None:
        self._stored.touch(now_ms)
        super().touch(now_ms)

    def restart(self, identity: Identity) -> None:
        self._stored.restart(identity)
        super().restart(identity)
        self.fresh_ms = 0

    def close(self) -> None:
        self._stored.close()


def _index_bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except TypeError:
        return repr(value).encode()
