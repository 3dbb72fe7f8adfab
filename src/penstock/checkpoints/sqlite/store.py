"""Checkpoints in a SQLite database: the default. One file, any number of threads and processes of one machine."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from penstock.checkpoints.fencing import NOT_YOURS, fenced, in_use
from penstock.checkpoints.format import encode_checkpoint, id_bytes, storable
from penstock.checkpoints.rows import FORGET, IS_HELD_AS, Rows, SqlCheckpoints
from penstock.databases import Schema
from penstock.databases.sqlite import BUSY_TIMEOUT_S, SqliteDatabase
from penstock.errors import ConfigError, CorruptCheckpointError, FencedError, TransactionError
from penstock.model import Change, CheckpointKey, Lease, Pointer

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
ADD_HISTORY: Final = """
    INSERT INTO penstock_happening
    SELECT ?1, coalesce((SELECT max(line) FROM penstock_happening WHERE checkpoint = ?1), 0) + 1,
           ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10"""
FORGET_HISTORY: Final = "DELETE FROM penstock_happening WHERE checkpoint = ? AND ended_ms < ?"
SET_STATE: Final = "INSERT OR REPLACE INTO penstock_state VALUES (?, ?, ?)"
UNSET_STATE: Final = "DELETE FROM penstock_state WHERE checkpoint = ? AND key = ?"
REMEMBER: Final = "INSERT OR REPLACE INTO penstock_handled VALUES (?, ?, ?, ?)"
FORGET_HANDLED: Final = 'DELETE FROM penstock_handled WHERE "group" = ? AND topic = ? AND at_ms < ?'


def is_one_statement(change: Change) -> bool:
    """Whether only the checkpoint must be saved, which one statement does without a transaction."""
    return not (
        change.history
        or change.state
        or change.handled
        or change.forget_handled_before_ms is not None
        or change.forget_history_before_ms is not None
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
    if change.history or change.state or change.forget_history_before_ms is not None:
        ((number,),) = cursor.execute(FIND, (key.group, key.topic, key.partition)).fetchall()
        _save_below(cursor, number, change)


def _save_below(cursor: sqlite3.Cursor, number: int, change: Change) -> None:
    for each in change.history:
        cursor.execute(
            ADD_HISTORY,
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
    if change.forget_history_before_ms is not None:
        cursor.execute(FORGET_HISTORY, (number, change.forget_history_before_ms))
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


class GuardedSqliteConnection(sqlite3.Connection):
    """A connection whose transactions only the store begins and ends.

    SQLite asks an authorizer when a statement is prepared, so `COMMIT` is refused however it is written, including by
    sqlite3's own `with connection:` and `executescript`. The methods raise errors that say why.
    """

    is_guarded = False
    """Whether a user has the connection."""
    was_refused = False
    """Whether a statement was refused since then."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, *where: str | None) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and self.is_guarded:
            self.was_refused = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def commit(self) -> NoReturn:
        raise TransactionError(NOT_YOURS)

    def rollback(self) -> NoReturn:
        raise TransactionError(NOT_YOURS)

    def close(self) -> None:
        if self.is_guarded:
            raise TransactionError(NOT_YOURS)
        super().close()

    @property
    def isolation_level(self) -> None:
        """None: nothing begins a transaction except the store."""
        return None

    @isolation_level.setter
    def isolation_level(self, value: object) -> NoReturn:
        raise TransactionError(NOT_YOURS)


class SqliteTransaction:
    """Returned by `SqliteCheckpoints.transaction()`. One thread uses it; all other writers wait until it ends."""

    def __init__(self, database: SqliteDatabase[GuardedSqliteConnection]) -> None:
        self._database = database
        self._connection: GuardedSqliteConnection | None = None
        self._depth = 0
        self._failure: Exception | None = None
        """Why a save failed: then the transaction must not commit, even if the user suppressed the error."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The database inside the transaction, with the user's own tables."""
        if self._connection is None:
            raise TransactionError("this transaction is not open: use it inside its `with` block only")
        return self._connection

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save the checkpoint; effective when the transaction commits."""
        if not self.connection.in_transaction:
            raise _ended()
        try:
            save_change(self._database, lease, key, change, checkpoint_values(lease, key, change))
        except Exception as error:
            self._failure = error
            raise

    def savepoint(self) -> SqliteSavepoint:
        """A block that is rolled back, and only that, if it raises."""
        return SqliteSavepoint(self)

    def __enter__(self) -> Self:
        self._connection = self._database.begin()
        self._connection.was_refused = False
        self._connection.is_guarded = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None, "the block was left before it was entered"
        connection.is_guarded = False
        if kind is None and self._failure is None and connection.in_transaction:
            self._database.commit()
            return
        self._database.roll_back()
        if kind is None:
            raise self._failure or _ended()
        if connection.was_refused and getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            raise TransactionError(NOT_YOURS) from error


class SqliteSavepoint:
    """A part of a transaction that can fail alone."""

    __slots__ = ("_name", "_transaction")

    def __init__(self, transaction: SqliteTransaction) -> None:
        self._transaction = transaction
        self._name = ""

    def __enter__(self) -> None:
        transaction = self._transaction
        transaction._depth += 1
        self._name = f"penstock_{transaction._depth}"
        transaction.connection.execute(f"SAVEPOINT {self._name}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction = self._transaction
        transaction._depth -= 1
        if not transaction.connection.in_transaction:  # a conflict clause has rolled back everything
            raise _ended() from error
        if kind is not None:
            transaction.connection.execute(f"ROLLBACK TO {self._name}")
        transaction.connection.execute(f"RELEASE {self._name}")


def _ended() -> TransactionError:
    return TransactionError(
        "the transaction was rolled back from inside, by a statement such as INSERT OR ROLLBACK; what was done before "
        "it is undone, and what was done after it is not. Use OR ABORT, which is the default, and savepoint()"
    )


SYNCHRONOUS: Final = ("NORMAL", "FULL")
IDS_AT_ONCE: Final = (1, 8, 64, 512)
"""How many idempotency keys one statement looks up: a few sizes, so that there are few different statements."""


class SqliteCheckpoints(SqlCheckpoints):
    """Checkpoints in a SQLite database, which may be the user's own: the tables are named `penstock_...`.

    `synchronous` is what a commit waits for. With NORMAL, saves survive the death of every process, and a power failure
    may undo the newest commits, but never a part of one. That repeats records, so it suits at-least-once, and
    exactly-once with effects in the same database, which are undone with their checkpoint. With FULL each commit waits
    for the disk: for at-most-once that must survive a power failure.

    `busy_timeout_s` is how long to wait for another writer. `on_connect` is called once with the connection that
    transactions will use, before they do: for pragmas, functions and a row factory.
    """

    _claim = f"""
        UPDATE penstock_lease SET owner = :claimant, epoch = epoch + 1, beat = 0
        WHERE {IS_HELD_AS} AND beat = :beat RETURNING epoch"""

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

    @property
    def host_path(self) -> str:
        """See `penstock.abc.HostStore`."""
        return os.path.abspath(self.path)

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

    def forget(self, group: str) -> None:
        with self.transaction() as transaction:
            held = [lease for lease in self.leases(group) if lease.owner]
            if held:
                raise in_use(held[0])
            for statement in FORGET:
                transaction.connection.execute(statement, {"group": group})

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

    def transaction(self) -> SqliteTransaction:
        """`with store.transaction() as tx:` — effects by `tx.connection`, the checkpoint by `tx.save`.

        A SQLite database has one writer at a time: keep it short, because others wait, including those that renew their
        leases.
        """
        return SqliteTransaction(self._database)

    def close(self) -> None:
        self._database.close()

    def _read(self, sql: str, values: Mapping[str, Any]) -> Rows:
        return self._database.read(sql, values)

    def _write(self, sql: str, values: Mapping[str, Any]) -> Rows:
        return self._database.write(sql, values)

    def _column(self, pointer: Pointer) -> int | bytes:
        return sortable(pointer)

    def _pointer(self, column: int | bytes) -> Pointer:
        return from_sortable(column)
