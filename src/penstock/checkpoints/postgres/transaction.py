"""A transaction in a PostgreSQL database: the user's effects and the checkpoint, both or neither."""

from __future__ import annotations

import logging
import re
import time
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Self

from penstock.checkpoints.fencing import NOT_YOURS, fenced
from penstock.checkpoints.postgres.save_statement import statement_for
from penstock.errors import FencedError, OutcomeUnknownError, StoreUnavailableError, TransactionError
from penstock.model import Change, CheckpointKey, Lease
from penstock.sql.postgres import PostgresConnection, PostgresPool, psycopg, rows_of

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
END: Final = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_xid = %s::xid8::xid"
"""Ends the server process of a connection, if it is still in this transaction."""

_SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_SPACE}(?:BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION"
    r"|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class GuardedCursor(psycopg.Cursor[Any]):
    """A cursor that does not end transactions which are not its own."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        connection = self.connection
        if isinstance(connection, GuardedPostgresConnection) and connection.is_guarded:
            text = query.decode() if isinstance(query, bytes) else query
            if isinstance(text, str) and _ENDS.match(text):
                raise TransactionError(NOT_YOURS)
        return super().execute(query, params, **options)


class GuardedPostgresConnection(PostgresConnection):
    """A connection whose transactions only the store begins and ends while a user has it."""

    is_guarded = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = GuardedCursor

    def commit(self) -> None:
        self._check()
        super().commit()

    def rollback(self) -> None:
        self._check()
        super().rollback()

    def _check(self) -> None:
        if self.is_guarded:
            raise TransactionError(NOT_YOURS)


class PostgresTransaction:
    """Returned by `PostgresCheckpoints.transaction()`. It has its own connection."""

    def __init__(self, pool: PostgresPool[GuardedPostgresConnection]) -> None:
        self._pool = pool
        self._connection: GuardedPostgresConnection | None = None
        self._transaction: Any = None
        self._number: str | None = None
        """The server's id of the transaction, by which its outcome can be queried later."""
        self._failure: Exception | None = None
        """Why a save failed: then the transaction must not commit, even if the user suppressed the error."""

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """A psycopg connection inside the transaction: execute, executemany, copy and pipeline all work."""
        return self._open()

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        """Save the checkpoint; effective when the transaction commits."""
        connection = self._open()
        if connection.is_idle():
            raise _ended()
        try:
            self._number = saved(connection, lease, key, change)
        except psycopg.Error as error:
            self._failure = self._pool.translated(error)
            raise self._failure from error
        except Exception as error:
            self._failure = error
            raise

    def savepoint(self) -> AbstractContextManager[None]:
        """A block that is rolled back, and only that, if it raises."""
        return _PostgresSavepoint(self._open())

    def __enter__(self) -> Self:
        connection = self._pool.take()
        try:
            self._transaction = connection.transaction()
            self._transaction.__enter__()
        except psycopg.Error as error:
            self._pool.give(connection)
            raise self._pool.translated(error) from error
        except BaseException:
            self._pool.give(connection)
            raise
        self._factory = connection.row_factory
        connection.is_guarded = True
        self._connection = connection
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None, "the block was left before it was entered"
        connection.is_guarded = False
        connection.row_factory = self._factory
        is_ended = connection.is_idle()
        if kind is None and self._failure is not None:
            kind, error, trace = type(self._failure), self._failure, self._failure.__traceback__
        try:
            self._transaction.__exit__(kind, error, trace)
        except psycopg.Error as failure:
            if kind is None:
                self._settle(connection, failure)
            elif not connection.closed:
                raise
        finally:
            self._pool.give(connection)
        if is_ended:
            raise _ended() from error
        if isinstance(error, psycopg.OperationalError) and connection.closed:
            raise self._pool.translated(error) from error
        if error is self._failure and error is not None:
            raise error

    def _settle(self, connection: GuardedPostgresConnection, failure: psycopg.Error) -> None:
        """Find out the outcome of a commit that was not answered."""
        if not connection.closed:  # it was answered with an error, such as a violated deferred constraint
            raise failure
        if self._number is None:
            raise OutcomeUnknownError(
                f"{self._pool.where}: the connection was lost during a commit: {failure}"
            ) from failure
        outcome = self._ask(self._number, connection.info.backend_pid)
        if outcome == "committed":
            logger.info("%s: the connection was lost during a commit, which succeeded", self._pool.where)
        elif outcome == "aborted":
            raise self._pool.translated(failure) from failure
        else:
            raise OutcomeUnknownError(
                f"{self._pool.where}: the connection was lost during a commit, and its outcome is unknown "
                f"({outcome}): claim the lease again, which waits for its end, and load the checkpoint"
            ) from failure

    def _ask(self, number: str, process: int) -> str:
        """The outcome of a transaction. If the server has not noticed the lost connection, end it there."""
        deadline_s = time.monotonic() + ASK_TIMEOUT_S
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                ((outcome,),) = self._pool.execute("SELECT pg_xact_status(%s::xid8)", (number,))
                if outcome == "in progress":
                    self._pool.execute(END, (process, number))
            except StoreUnavailableError as error:
                outcome = str(error)
            if outcome in ("committed", "aborted") or time.monotonic() > deadline_s:
                return str(outcome)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _open(self) -> GuardedPostgresConnection:
        if self._connection is None:
            raise TransactionError("this transaction is not open: use it inside its `with` block only")
        return self._connection


class _PostgresSavepoint:
    """A part of a transaction that can fail alone."""

    __slots__ = ("_inner",)

    def __init__(self, connection: GuardedPostgresConnection) -> None:
        self._inner = connection.transaction()

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # psycopg would suppress its own Rollback; here it is raised.
        self._inner.__exit__(kind, error, trace)


def saved(connection: GuardedPostgresConnection, lease: Lease, key: CheckpointKey, change: Change) -> str:
    """Save a change and return the id of its transaction. FencedError when another owner has the lease."""
    rows = rows_of(connection, *statement_for(lease, key, change)) if lease.owner else []
    if not rows:
        raise refusal(connection, lease)
    return str(rows[0][0])


def refusal(connection: GuardedPostgresConnection, lease: Lease) -> FencedError:
    """The error for an owner that lost its lease."""
    sql = 'SELECT owner, epoch, beat FROM penstock_lease WHERE "group" = %s AND name = %s'
    rows = rows_of(connection, sql, (lease.group, lease.name))
    return fenced(lease, Lease(lease.group, lease.name, *rows[0]) if rows else None)


def _ended() -> TransactionError:
    return TransactionError(
        "the transaction was ended from inside, by a COMMIT or ROLLBACK among other statements; what it did so far "
        "cannot be undone together with the checkpoint. Leave that to the end of the block"
    )
