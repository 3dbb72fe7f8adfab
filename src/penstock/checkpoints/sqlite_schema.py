"""The tables of a SQLite database that keeps checkpoints, and opening one.

The names of all of them begin with `penstock_`, as the database may be the user's own, with tables of theirs in it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.errors import ConfigError, CorruptCheckpointError, PenstockError, StoreUnavailableError
from penstock.model import Pointer

SCHEMA_VERSION: Final = 1

TABLES: Final = (
    "CREATE TABLE penstock_schema (version INTEGER NOT NULL)",
    """CREATE TABLE penstock_lease (
        "group" TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, beat INTEGER NOT NULL,
        PRIMARY KEY ("group", name)) WITHOUT ROWID""",
    # The highest epoch that a group had when it was forgotten: should it come back, no old owner must fit again.
    """CREATE TABLE penstock_forgotten (
        "group" TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE penstock_checkpoint (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        "group" TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, data BLOB NOT NULL,
        UNIQUE ("group", topic, partition))""",
    # Pointers have no type: those that fit are integers, larger ones blobs, which SQLite sorts behind all integers.
    """CREATE TABLE penstock_happening (
        checkpoint INTEGER NOT NULL, line INTEGER NOT NULL, first NOT NULL, "end" NOT NULL, status TEXT NOT NULL,
        attempt INTEGER NOT NULL, error TEXT NOT NULL, begun_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
        owner TEXT NOT NULL, handler TEXT NOT NULL,
        PRIMARY KEY (checkpoint, line)) WITHOUT ROWID""",
    "CREATE INDEX penstock_happening_ended ON penstock_happening (checkpoint, ended_ms)",
    """CREATE TABLE penstock_state (
        checkpoint INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
        PRIMARY KEY (checkpoint, key)) WITHOUT ROWID""",
    """CREATE TABLE penstock_handled (
        "group" TEXT NOT NULL, topic TEXT NOT NULL, id NOT NULL, at_ms INTEGER NOT NULL,
        PRIMARY KEY ("group", topic, id)) WITHOUT ROWID""",
    'CREATE INDEX penstock_handled_at ON penstock_handled ("group", topic, at_ms)',
)

MADE: Final = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'penstock_schema'"
OURS: Final = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name LIKE 'penstock\\_%' ESCAPE '\\'"

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
REFUSED: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 0.1

Done = TypeVar("Done")


def prepare(connection: sqlite3.Connection, path: str, synchronous: str, timeout_s: float) -> None:
    """Set a connection up, and make the tables where there are none. Many processes may do this at once."""
    retrying(lambda: _switch_to_wal(connection, path), path, timeout_s)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    retrying(lambda: _make_tables(connection, path), path, timeout_s)


def retrying(step: Callable[[], Done], path: str, timeout_s: float) -> Done:
    """Do it again for a while where SQLite says that somebody else is at it.

    SQLite waits by itself for a writer to end, but not in the moments in which a database changes to WAL, or is
    recovered after a crash.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return step()
        except sqlite3.Error as error:
            if primary_code(error) not in BUSY or time.monotonic() > deadline:
                raise translated(error, path) from error
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def translated(error: sqlite3.Error, path: str) -> PenstockError | sqlite3.Error:
    """The error that our user can do something about, where there is one."""
    code = primary_code(error)
    if code in BUSY:
        return StoreUnavailableError(
            f"{path}: another process or thread is writing to this database, and did not end in time ({error}); "
            "keep transactions short, or give each group a database of its own"
        )
    if code in DAMAGED:
        return CorruptCheckpointError(
            f"{path}: this SQLite database is damaged ({error}). Nothing is guessed: restore it from a copy, rescue "
            "what can be read with `sqlite3 FILE .recover`, or remove it and say where the groups shall begin."
        )
    if code in REFUSED:
        return StoreUnavailableError(
            f"{path}: SQLite cannot use this file now: {error}; see to the disk and its rights"
        )
    return error


def primary_code(error: sqlite3.Error) -> int:
    """What kind of error it is, without SQLite's finer distinctions."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def sortable(pointer: Pointer) -> int | bytes:
    """A pointer as a value that SQLite compares as Python compares the pointer."""
    if -(1 << 63) <= pointer < 1 << 63:
        return pointer
    if pointer < 0:
        raise ValueError(f"the pointer {pointer} is below what a SQLite store can keep, -2**63")
    size_bytes = (pointer.bit_length() + 7) // 8
    return size_bytes.to_bytes(4, "big") + pointer.to_bytes(size_bytes, "big")


def from_sortable(value: int | bytes) -> Pointer:
    return value if isinstance(value, int) else int.from_bytes(value[4:], "big")


def _switch_to_wal(connection: sqlite3.Connection, path: str) -> None:
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.DatabaseError as error:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise ConfigError(
                f"{path} is not a SQLite database, or its first page is damaged: choose another file for the "
                "checkpoints, or restore this one from a copy"
            ) from error
        raise
    if mode not in ("wal", "memory"):
        raise ConfigError(
            f"{path}: SQLite cannot keep a write-ahead log here (journal_mode is {mode}): put the file on a local disk"
        )


def _make_tables(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute(MADE).fetchone() is not None:
        _version(connection, path)
        return
    connection.execute("BEGIN IMMEDIATE")  # what is there is looked at when nobody else can be making it
    try:
        if _version(connection, path) is None:  # nobody else was quicker
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO penstock_schema VALUES (?)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection, path: str) -> int | None:
    """The version of the tables that are there; None when there are none. ConfigError when they are not ours."""
    try:
        rows = connection.execute("SELECT version FROM penstock_schema").fetchall()
    except sqlite3.OperationalError as error:
        if primary_code(error) != sqlite3.SQLITE_ERROR:
            raise
        if connection.execute(OURS).fetchone() != (0,):
            raise ConfigError(
                f"{path} has tables named penstock_... that this program did not make: choose another file"
            ) from error
        return None
    if len(rows) != 1 or rows[0][0] != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} holds checkpoints of version {', '.join(str(row[0]) for row in rows) or 'unknown'}, and this "
            f"program knows version {SCHEMA_VERSION} only: run the newer Penstock that wrote it, or choose another file"
        )
    return SCHEMA_VERSION
