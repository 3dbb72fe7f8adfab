"""The connection that writes: it is handed to users inside transactions, and refuses to end them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final, NoReturn

from penstock.checkpoints.sqlite_schema import prepare
from penstock.errors import TransactionError

# Texts that nobody else writes: Python keeps statements by their text, and one it has is not asked about again.
BEGIN: Final = "BEGIN IMMEDIATE /* penstock */"
COMMIT: Final = "COMMIT /* penstock */"
ROLLBACK: Final = "ROLLBACK /* penstock */"

CACHED_STATEMENTS: Final = 256

NOT_YOURS: Final = (
    "this transaction holds the checkpoint too, and ends when its block does: leave the block to commit, raise to roll "
    "back, and use savepoint() to undo a part"
)


class GuardedConnection(sqlite3.Connection):
    """A connection whose transactions are begun and ended by the store only.

    SQLite asks an authorizer when a statement is prepared; so `COMMIT` is refused however it is written, and from
    inside of sqlite3's own `with connection:` and `executescript` too. The methods say why in a sentence.
    """

    is_guarded = False
    """Whether a user has it in hand."""
    was_refused = False
    """Whether a statement was refused since then."""

    def guard(self) -> None:
        """Ask about every statement from now on. Once for a connection."""
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
        """None: nothing is begun behind the store's back."""
        return None

    @isolation_level.setter
    def isolation_level(self, value: object) -> NoReturn:
        raise TransactionError(NOT_YOURS)


def connect(
    path: str,
    synchronous: str,
    busy_timeout_s: float,
    on_connect: Callable[[sqlite3.Connection], object] | None = None,
) -> GuardedConnection:
    """A connection to a database that is ready for checkpoints."""
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=GuardedConnection,
        cached_statements=CACHED_STATEMENTS,
    )
    try:
        prepare(connection, path, synchronous, busy_timeout_s)
        connection.guard()
        if on_connect is not None:
            on_connect(connection)
    except BaseException:
        connection.close()
        raise
    return connection
