"""Checkpoints in a SQLite database: the default. One file, any number of threads and processes of one machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from penstock.abc import Feature, Features
from penstock.checkpoints.fencing import FEATURES, in_use
from penstock.checkpoints.format import decode_checkpoint
from penstock.checkpoints.sqlite.statements import (
    SAVE,
    SCHEMA,
    checkpoint_values,
    from_sortable,
    is_one_statement,
    refusal,
    save_change,
    sortable,
    storable_id,
)
from penstock.checkpoints.sqlite.transaction import GuardedSqliteConnection, SqliteTransaction
from penstock.errors import ConfigError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer, Status
from penstock.model.closing import Closing
from penstock.sql.sqlite import BUSY_TIMEOUT_S, SqliteDatabase

SYNCHRONOUS: Final = ("NORMAL", "FULL")
IDS_AT_ONCE: Final = (1, 8, 64, 512)
"""How many idempotency keys one statement looks up: a few sizes, so that there are few different statements."""

IS_HELD_AS: Final = '"group" = ? AND name = ? AND owner = ? AND epoch = ?'
CLAIM_FIRST: Final = """
    INSERT INTO penstock_lease
    SELECT ?1, ?2, ?3, coalesce((SELECT epoch FROM penstock_forgotten WHERE "group" = ?1), 0) + 1, 0 WHERE true
    ON CONFLICT DO NOTHING RETURNING epoch"""
CLAIM: Final = f"""
    UPDATE penstock_lease SET owner = ?, epoch = epoch + 1, beat = 0 WHERE {IS_HELD_AS} AND beat = ? RETURNING epoch"""
HISTORY: Final = """
    SELECT first, "end", status, attempt, error, begun_ms, ended_ms, owner, handler FROM penstock_happening
    WHERE checkpoint = (SELECT id FROM penstock_checkpoint WHERE "group" = ? AND topic = ? AND partition = ?)"""
FORGET: Final = (
    """INSERT OR REPLACE INTO penstock_forgotten
       SELECT ?1, max(epoch) FROM (
           SELECT epoch FROM penstock_lease WHERE "group" = ?1
           UNION SELECT epoch FROM penstock_forgotten WHERE "group" = ?1)
       HAVING count(*) > 0""",
    'DELETE FROM penstock_happening WHERE checkpoint IN (SELECT id FROM penstock_checkpoint WHERE "group" = ?1)',
    'DELETE FROM penstock_state WHERE checkpoint IN (SELECT id FROM penstock_checkpoint WHERE "group" = ?1)',
    'DELETE FROM penstock_handled WHERE "group" = ?1',
    'DELETE FROM penstock_checkpoint WHERE "group" = ?1',
    'DELETE FROM penstock_lease WHERE "group" = ?1',
)


class SqliteCheckpoints(Closing):
    """Checkpoints in a SQLite database, which may be the user's own: the tables are named `penstock_...`.

    `synchronous` is what a commit waits for. With NORMAL, saves survive the death of every process, and a power failure
    may undo the newest commits, but never a part of one. That repeats records, so it suits at-least-once, and
    exactly-once with effects in the same database, which are undone with their checkpoint. With FULL each commit waits
    for the disk: for at-most-once that must survive a power failure.

    `busy_timeout_s` is how long to wait for another writer. `on_connect` is called once with the connection that
    transactions will use, before they do: for pragmas, functions and a row factory.
    """

    features: Features = FEATURES | {Feature.TRANSACTIONS}

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: str = "NORMAL",
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        on_connect: Callable[[sqlite3.Connection], object] | None = None,
    ) -> None:
        if synchronous.upper() not in SYNCHRONOUS:
            raise ConfigError(f"synchronous={synchronous!r} must be {' or '.join(SYNCHRONOUS)}")
        if busy_timeout_s <= 0:
            raise ConfigError(f"busy_timeout_s={busy_timeout_s} must be positive")
        self.path = os.fspath(path)
        self._database = SqliteDatabase(
            self.path,
            SCHEMA,
            synchronous=synchronous.upper(),
            busy_timeout_s=busy_timeout_s,
            factory=GuardedSqliteConnection,
            on_connect=on_connect,
        )

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        if seen is None:
            rows = self._database.write(CLAIM_FIRST, (group, name, owner))
        else:
            rows = self._database.write(CLAIM, (owner, group, name, seen.owner, seen.epoch, seen.beat))
        return Lease(group, name, owner, rows[0][0], 0) if rows else None

    def renew(self, lease: Lease) -> Lease:
        if not lease.owner:
            raise refusal(self._database, lease)
        rows = self._database.write(
            f"UPDATE penstock_lease SET beat = beat + 1 WHERE {IS_HELD_AS} RETURNING beat",
            (lease.group, lease.name, lease.owner, lease.epoch),
        )
        if not rows:
            raise refusal(self._database, lease)
        return Lease(lease.group, lease.name, lease.owner, lease.epoch, rows[0][0])

    def release(self, lease: Lease) -> None:
        values = (lease.group, lease.name, lease.owner, lease.epoch)
        self._database.write(f"UPDATE penstock_lease SET owner = '' WHERE {IS_HELD_AS}", values)

    def leases(self, group: str) -> Sequence[Lease]:
        sql = 'SELECT name, owner, epoch, beat FROM penstock_lease WHERE "group" = ? ORDER BY name'
        return [Lease(group, *row) for row in self._database.read(sql, (group,))]

    def forget_lease(self, lease: Lease) -> None:
        values = (lease.group, lease.name, lease.owner, lease.epoch, lease.beat)
        self._database.write(f"DELETE FROM penstock_lease WHERE {IS_HELD_AS} AND beat = ?", values)

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        sql = 'SELECT data FROM penstock_checkpoint WHERE "group" = ? AND topic = ? AND partition = ?'
        rows = self._database.read(sql, (key.group, key.topic, key.partition))
        return decode_checkpoint(rows[0][0], key) if rows else None

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        values = checkpoint_values(lease, key, change)
        database = self._database
        if not is_one_statement(change):
            with database.transaction():
                save_change(database, lease, key, change, values)
            return
        database.take_turn()
        try:
            if lease.owner:
                database.execute(SAVE, values)
            if not lease.owner or database.cursor.rowcount != 1:
                raise refusal(database, lease)
        finally:
            database.give_turn()

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        sql = 'SELECT topic, partition, data FROM penstock_checkpoint WHERE "group" = ? ORDER BY topic, partition'
        keyed = [
            (CheckpointKey(group, topic, number), data) for topic, number, data in self._database.read(sql, (group,))
        ]
        return {key: decode_checkpoint(data, key) for key, data in keyed}

    def groups(self) -> Sequence[str]:
        sql = 'SELECT "group" FROM penstock_lease UNION SELECT "group" FROM penstock_checkpoint ORDER BY 1'
        return [group for (group,) in self._database.read(sql)]

    def forget(self, group: str) -> None:
        with self.transaction() as transaction:
            held = [lease for lease in self.leases(group) if lease.owner]
            if held:
                raise in_use(held[0])
            for statement in FORGET:
                transaction.connection.execute(statement, (group,))

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        sql = """SELECT key, value FROM penstock_state WHERE checkpoint =
                 (SELECT id FROM penstock_checkpoint WHERE "group" = ? AND topic = ? AND partition = ?)"""
        return dict(self._database.read(sql, (key.group, key.topic, key.partition)))

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        by_value = {storable_id(each): each for each in ids}
        values = list(by_value)
        found: set[str] = set()
        for first in range(0, len(values), IDS_AT_ONCE[-1]):
            some = values[first : first + IDS_AT_ONCE[-1]]
            count = next(size for size in IDS_AT_ONCE if size >= len(some))
            some += [some[0]] * (count - len(some))
            marks = ", ".join("?" * count)
            sql = f'SELECT id FROM penstock_handled WHERE "group" = ? AND topic = ? AND id IN ({marks})'
            found.update(by_value[row[0]] for row in self._database.read(sql, (group, topic, *some)))
        return frozenset(found)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        sql, values = HISTORY, [key.group, key.topic, key.partition]
        if pointer is not None:
            sql += ' AND "end" > ? AND first <= ?'
            values += [sortable(pointer), sortable(pointer)]
        rows = self._database.read(f"{sql} ORDER BY line DESC LIMIT ?", (*values, limit))
        return [
            HistoryEntry(from_sortable(first), from_sortable(end), Status(status), *rest)
            for first, end, status, *rest in reversed(rows)
        ]

    def transaction(self) -> SqliteTransaction:
        """`with store.transaction() as tx:` — effects by `tx.connection`, the checkpoint by `tx.save`.

        A SQLite database has one writer at a time: keep it short, because others wait, including those that renew their
        leases.
        """
        return SqliteTransaction(self._database)

    def close(self) -> None:
        self._database.close()
