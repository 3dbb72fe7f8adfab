"""The statements that save a change to SQLite, fenced by the lease in the same statement."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from penstock.checkpoints.fencing import fenced
from penstock.checkpoints.format import encode_checkpoint, storable
from penstock.checkpoints.sqlite_database import SqliteDatabase
from penstock.checkpoints.sqlite_schema import sortable, translated
from penstock.errors import FencedError
from penstock.model import Change, CheckpointKey, Lease

# A row comes from the lease only if it still is ours: one statement compares and sets, with no moment in between.
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
    """Whether the checkpoint is all there is to save, so that one statement does it, without a transaction around."""
    return not (
        change.happenings
        or change.state
        or change.handled
        or change.forget_handled_before_ms is not None
        or change.forget_happenings_before_ms is not None
    )


def checkpoint_values(lease: Lease, key: CheckpointKey, change: Change) -> tuple[Any, ...]:
    """What SAVE is to be given. Making it is most of the work: do it before the database is locked."""
    data = encode_checkpoint(change.checkpoint)
    return (key.group, key.topic, key.partition, data, key.group, key.lease_name, lease.owner, lease.epoch)


def save_change(
    database: SqliteDatabase, lease: Lease, key: CheckpointKey, change: Change, values: tuple[Any, ...]
) -> None:
    """Save everything, inside of a transaction; `values` are the `checkpoint_values`."""
    cursor = database.cursor
    try:
        if not lease.owner or cursor.execute(SAVE, values).rowcount != 1:
            raise refusal(database, lease)
        if not is_one_statement(change):
            _save_rest(cursor, key, change)
    except sqlite3.Error as error:
        raise translated(error, database.path) from error


def refusal(database: SqliteDatabase, lease: Lease) -> FencedError:
    """What to tell an owner who is none any more."""
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
    """An idempotency key as SQLite can keep it: text, or bytes where the text has no form in UTF-8."""
    if id.isascii():
        return id
    try:
        id.encode()
    except UnicodeEncodeError:
        return id.encode("utf-8", "surrogatepass")
    return id
