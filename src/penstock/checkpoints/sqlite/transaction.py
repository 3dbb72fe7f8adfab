"""A transaction in a SQLite database: the user's effects and the checkpoint, both or neither."""

from __future__ import annotations

import sqlite3
from types import TracebackType
from typing import Any, NoReturn, Self

from penstock.checkpoints.fencing import NOT_YOURS
from penstock.checkpoints.sqlite.statements import checkpoint_values, save_change
from penstock.errors import TransactionError
from penstock.model import Change, CheckpointKey, Lease
from penstock.sql.sqlite import SqliteDatabase


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
