"""The tables of checkpoints in SQLite, and the statements that save a change, each fenced by the lease."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.format import encode_checkpoint, id_bytes, storable
from penstock.errors import CorruptCheckpointError, FencedError
from penstock.model import Change, CheckpointKey, Lease, Pointer
from penstock.sql import Schema
from penstock.sql.sqlite import SqliteDatabase

_TABLES: Final = (
    """CREATE TABLE penstock_lease (
        "group" TEXT NOT NULL, name TEXT NOT NULL, owner TEXT NOT NULL, epoch INTEGER NOT NULL, beat INTEGER NOT NULL,
        PRIMARY KEY ("group", name)) WITHOUT ROWID""",
    # The highest epoch of a deleted group: if it is created again, no old owner must match.
    """CREATE TABLE penstock_forgotten (
        "group" TEXT PRIMARY KEY NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE penstock_checkpoint (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        "group" TEXT NOT NULL, topic TEXT NOT NULL, partition INTEGER NOT NULL, data BLOB NOT NULL,
        UNIQUE ("group", topic, partition))""",
    # Pointers are untyped: those that fit are integers, larger ones blobs, which SQLite sorts after all integers.
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

SCHEMA: Final = Schema("checkpoints", 1, "penstock_schema", _TABLES, CorruptCheckpointError)


def sortable(pointer: Pointer) -> int | bytes:
    """A pointer as a value that SQLite orders as Python orders the pointer."""
    if -(1 << 63) <= pointer < 1 << 63:
        return pointer
    if pointer < 0:
        raise ValueError(f"the pointer {pointer} is below -2**63, the least that a SQLite store can keep")
    size_bytes = (pointer.bit_length() + 7) // 8
    return size_bytes.to_bytes(4, "big") + pointer.to_bytes(size_bytes, "big")


def from_sortable(value: int | bytes) -> Pointer:
    return value if isinstance(value, int) else int.from_bytes(value[4:], "big")


# The lease yields a row only if it is still ours: one atomic statement compares and sets.
SAVE: Final = """
    INSERT INTO penstock_checkpoint ("group", topic, partition, data)
    SELECT ?, ?, ?, ? FROM penstock_lease WHERE "group" = ? AND name = ? AND owner = ? AND epoch = ?
    ON CONFLICT ("group", topic, partition) DO UPDATE SET data = excluded.data"""
FIND: Final = 'SELECT id FROM penstock_checkpoint WHERE "group" = ? AND topic = ? AND partition = ?'
ADD_HAPPENING: Final = """
    INSERT INTO penstock_happening
    SELECT ?1, coalesce((SELECT max(line) FROM penstock_happening WHERE checkpoint = ?1), 0) + 1,
           ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"""
FORGET_HAPPENINGS: Final = "DELETE FROM penstock_happening WHERE checkpoint = ? AND ended_ms < ?"
SET_STATE: Final = "INSERT OR REPLACE INTO penstock_state VALUES (?, ?, ?)"
UNSET_STATE: Final = "DELETE FROM penstock_state WHERE checkpoint = ? AND key = ?"
REMEMBER: Final = "INSERT OR REPLACE INTO penstock_handled VALUES (?, ?, ?, ?)"
FORGET_HANDLED: Final = 'DELETE FROM penstock_handled WHERE "group" = ? AND topic = ? AND at_ms < ?'


def is_one_statement(change: Change) -> bool:
    """Whether only the checkpoint must be saved, which one statement does without a transaction."""
    return not (
        change.happenings
        or change.state
        or change.handled
        or change.forget_handled_before_ms is not None
        or change.forget_happenings_before_ms is not None
    )


def checkpoint_values(lease: Lease, key: CheckpointKey, change: Change) -> tuple[Any, ...]:
    """The values for SAVE. Encoding them is most of the work: do it before the database is locked."""
    data = encode_checkpoint(change.checkpoint)
    return (key.group, key.topic, key.partition, data, key.group, key.lease_name, lease.owner, lease.epoch)


def save_change(
    database: SqliteDatabase[Any], lease: Lease, key: CheckpointKey, change: Change, values: tuple[Any, ...]
) -> None:
    """Save everything inside a transaction; `values` are the `checkpoint_values`."""
    cursor = database.cursor
    try:
        if not lease.owner or cursor.execute(SAVE, values).rowcount != 1:
            raise refusal(database, lease)
        if not is_one_statement(change):
            _save_rest(cursor, key, change)
    except sqlite3.Error as error:
        raise database.translated(error) from error


def refusal(database: SqliteDatabase[Any], lease: Lease) -> FencedError:
    """The error for an owner that lost its lease."""
    sql = 'SELECT owner, epoch, beat FROM penstock_lease WHERE "group" = ? AND name = ?'
    rows = database.read(sql, (lease.group, lease.name))
    return fenced(lease, Lease(lease.group, lease.name, *rows[0]) if rows else None)


def _save_rest(cursor: sqlite3.Cursor, key: CheckpointKey, change: Change) -> None:
    if change.handled:
        rows = [(key.group, key.topic, storable_id(each.id), each.at_ms) for each in change.handled]
        cursor.executemany(REMEMBER, rows)
    if change.forget_handled_before_ms is not None:
        cursor.execute(FORGET_HANDLED, (key.group, key.topic, change.forget_handled_before_ms))
    if change.happenings or change.state or change.forget_happenings_before_ms is not None:
        ((number,),) = cursor.execute(FIND, (key.group, key.topic, key.partition)).fetchall()
        _save_below(cursor, number, change)


def _save_below(cursor: sqlite3.Cursor, number: int, change: Change) -> None:
    for each in change.happenings:
        cursor.execute(
            ADD_HAPPENING,
            (
                number,
                sortable(each.first),
                sortable(each.end),
                each.status.value,
                each.attempt,
                storable(each.error),
                each.begun_ms,
                each.ended_ms,
                each.owner,
                each.handler,
            ),
        )
    if change.forget_happenings_before_ms is not None:
        cursor.execute(FORGET_HAPPENINGS, (number, change.forget_happenings_before_ms))
    if change.state:
        kept = [(number, name, value) for name, value in change.state.items() if value is not None]
        gone = [(number, name) for name, value in change.state.items() if value is None]
        cursor.executemany(SET_STATE, kept)
        cursor.executemany(UNSET_STATE, gone)


def storable_id(id: str) -> str | bytes:
    """An idempotency key as SQLite can store it: text, or bytes if UTF-8 cannot encode it."""
    if id.isascii():
        return id
    try:
        id.encode()
    except UnicodeEncodeError:
        return id_bytes(id)
    return id
