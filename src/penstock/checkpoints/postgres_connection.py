"""A connection to PostgreSQL that is handed to users inside transactions, and refuses to end them."""

from __future__ import annotations

import re
import select
from typing import Any, Final, Self

from penstock.errors import MissingExtraError, TransactionError

try:
    import psycopg
    import psycopg.conninfo
    from psycopg.rows import tuple_row
except ImportError as error:
    raise MissingExtraError("a checkpoint store in PostgreSQL", "postgres") from error

__all__ = ["GuardedConnection", "NOT_YOURS", "Rows", "psycopg", "rows_of"]

Rows = list[tuple[Any, ...]]

NOT_YOURS: Final = (
    "this transaction holds the checkpoint too, and ends when its block does: leave the block to commit, raise to roll "
    "back, and use savepoint() to undo a part"
)

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
        if isinstance(connection, GuardedConnection) and connection.is_guarded:
            text = query.decode() if isinstance(query, bytes) else query
            if isinstance(text, str) and _ENDS.match(text):
                raise TransactionError(NOT_YOURS)
        return super().execute(query, params, **options)


class GuardedConnection(psycopg.Connection[Any]):
    """A connection whose transactions are begun and ended by the store only, while a user has it in hand."""

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

    def is_idle(self) -> bool:
        """Whether it is open and no transaction is, be it sound or failed. In a pipeline that shows at its end only."""
        return not self.closed and self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def has_news(self) -> bool:
        """Whether the server has said something while nobody used the connection: mostly, that it is going away."""
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))


def rows_of(connection: GuardedConnection, sql: str, values: Any = ()) -> Rows:
    """All rows of a statement that gives rows, as tuples, whatever row factory a user has set."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()
