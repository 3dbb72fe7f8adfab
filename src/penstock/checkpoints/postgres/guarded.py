"""A PostgreSQL connection as handlers get it: only the store ends its transaction, and statements may be sent ahead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Self

from penstock.checkpoints.fencing import NOT_YOURS
from penstock.databases.postgres import PostgresConnection, psycopg
from penstock.errors import TransactionError

_SPACE: Final = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_ENDS: Final = re.compile(
    rf"{_SPACE}(?:BEGIN|START\s+TRANSACTION|COMMIT|END|ABORT|PREPARE\s+TRANSACTION"
    r"|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


class GuardedCursor(psycopg.Cursor[Any]):
    """A cursor that does not end transactions which are not its own.

    Of a statement that was sent ahead, whoever asks for the outcome waits for it.
    """

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        connection = self.connection
        if isinstance(connection, GuardedPostgresConnection) and connection.is_guarded:
            text = query.decode() if isinstance(query, bytes) else query
            if isinstance(text, str) and _ENDS.match(text):
                raise TransactionError(NOT_YOURS)
        return super().execute(query, params, **options)

    @property
    def rowcount(self) -> int:
        self._await_result()
        return super().rowcount

    @property
    def rownumber(self) -> int | None:
        self._await_result()
        return super().rownumber

    @property
    def statusmessage(self) -> str | None:
        self._await_result()
        return super().statusmessage

    @property
    def description(self) -> list[psycopg.Column] | None:
        self._await_result()
        return super().description

    def nextset(self) -> bool | None:
        self._await_result()
        return super().nextset()

    def results(self) -> Iterator[Self]:
        self._await_result()
        return super().results()

    def set_result(self, index: int) -> Self:
        self._await_result()
        return super().set_result(index)

    def copy(self, *arguments: Any, **options: Any) -> Any:
        self._one_by_one()
        return super().copy(*arguments, **options)

    def stream(self, *arguments: Any, **options: Any) -> Any:
        self._one_by_one()
        return super().stream(*arguments, **options)

    def _await_result(self) -> None:
        connection = self.connection
        if self.pgresult is None and isinstance(connection, GuardedPostgresConnection):
            connection.await_results()

    def _one_by_one(self) -> None:
        connection = self.connection
        if isinstance(connection, GuardedPostgresConnection):
            connection.end_sending_ahead()


class GuardedPostgresConnection(PostgresConnection):
    """A connection whose transactions only the store begins and ends while a user has it.

    While it sends ahead, it is in psycopg's pipeline mode, until a user needs something that this mode does not have.
    """

    is_guarded = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = GuardedCursor
        self._ahead: psycopg.Pipeline | None = None
        self._block: AbstractContextManager[psycopg.Pipeline] | None = None
        self._error: psycopg.Error | None = None

    def send_ahead(self) -> None:
        """Do not wait for results from now on, unless the user asks for them."""
        if self._ahead is None:
            self._block = super().pipeline()
            self._ahead = self._block.__enter__()

    def await_results(self) -> None:
        """Wait for the results of everything that was sent ahead."""
        if self._ahead is not None:
            self._ahead.sync()

    def end_sending_ahead(self) -> None:
        """Wait for the results, and for the result of each statement from now on."""
        block, self._block = self._block, None
        if block is None:
            return
        try:
            block.__exit__(None, None, None)
        finally:
            self._ahead = None

    def take_error(self) -> psycopg.Error | None:
        """Return and forget the first error of the statements that were sent ahead. The handler may have caught it."""
        error, self._error = self._error, None
        return error

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """psycopg waits here for whatever it does. An error may belong to a statement of another handler call."""
        if self._ahead is None:
            return super().wait(*arguments, **options)
        try:
            return super().wait(*arguments, **options)
        except psycopg.Error as error:
            if self._error is None:
                self._error = error
            raise

    def cursor(self, name: str = "", **options: Any) -> Any:
        if name:
            self.end_sending_ahead()
        return super().cursor(name, **options)

    @contextmanager
    def transaction(self, *arguments: Any, **options: Any) -> Iterator[psycopg.Transaction]:
        self.end_sending_ahead()
        with super().transaction(*arguments, **options) as transaction:
            yield transaction

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        self.end_sending_ahead()
        with super().pipeline() as pipeline:
            yield pipeline

    def commit(self) -> None:
        self._check()
        super().commit()

    def rollback(self) -> None:
        self._check()
        super().rollback()

    def _check(self) -> None:
        if self.is_guarded:
            raise TransactionError(NOT_YOURS)
