"""A statement inside a transaction of the application, whichever library the application uses."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from penstock.errors import ConfigError

_ASYNC: Final = ("AsyncSession", "AsyncConnection", "AsyncEngine")


class ApplicationConnection(Protocol):
    """The application's connection. Statements have `%s` for each value."""

    def block(self) -> AbstractContextManager[Any]:
        """A transaction; a savepoint, if the connection is in one already."""

    def execute(self, sql: str, values: Sequence[Any]) -> int:
        """The number of rows that the statement changed."""

    def is_in_transaction(self) -> bool: ...


def application_connection(connection: Any) -> ApplicationConnection:
    """Find out which library a connection belongs to. Raises ConfigError."""
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__]
    roots = {root for root, _ in kinds}
    name = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if any(kind in _ASYNC for _, kind in kinds):
        raise ConfigError(
            f"{name} is asynchronous: call this in a thread with a synchronous connection, or with SQLAlchemy by "
            "`await session.run_sync(...)`"
        )
    if isinstance(connection, sqlite3.Connection):
        return _Sqlite(connection)
    if "sqlalchemy" in roots and hasattr(connection, "begin_nested"):
        return _SqlAlchemy(connection)
    if "django" in roots and hasattr(connection, "alias"):
        return _Django(connection)
    if "psycopg" in roots and hasattr(connection, "transaction"):
        return _Psycopg(connection)
    raise ConfigError(
        f"{name} is not a connection that is known here: pass one of psycopg 3 or sqlite3, a SQLAlchemy session or "
        "connection, or Django's `django.db.connection`"
    )


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def block(self) -> AbstractContextManager[Any]:
        block: AbstractContextManager[Any] = self._connection.transaction()
        return block

    def execute(self, sql: str, values: Sequence[Any]) -> int:
        return int(self._connection.execute(sql, values).rowcount)

    def is_in_transaction(self) -> bool:
        connection = self._connection
        return not connection.autocommit or connection.info.transaction_status.name != "IDLE"


class _Sqlite:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def block(self) -> Any:
        connection = self._connection
        is_nested = connection.in_transaction
        connection.execute("SAVEPOINT penstock_outbox" if is_nested else "BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK TO penstock_outbox" if is_nested else "ROLLBACK")
                if is_nested:
                    connection.execute("RELEASE penstock_outbox")
            raise
        connection.execute("RELEASE penstock_outbox" if is_nested else "COMMIT")

    def execute(self, sql: str, values: Sequence[Any]) -> int:
        return self._connection.execute(sql.replace("%s", "?"), values).rowcount

    def is_in_transaction(self) -> bool:
        return self._connection.in_transaction


class _SqlAlchemy:
    """A session, or a connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def block(self) -> AbstractContextManager[Any]:
        connection = self._connection
        block: AbstractContextManager[Any]
        block = connection.begin_nested() if connection.in_transaction() else connection.begin()
        return block

    def execute(self, sql: str, values: Sequence[Any]) -> int:
        connection = self._connection
        if hasattr(connection, "connection") and callable(connection.connection):  # a session
            connection.flush()
            connection = connection.connection()
        style = connection.dialect.paramstyle
        if style == "qmark":
            sql = sql.replace("%s", "?")
        elif style not in ("format", "pyformat"):
            raise ConfigError(
                f"SQLAlchemy's dialect {connection.dialect.name}+{connection.dialect.driver} writes parameters as "
                f"{style}: use postgresql+psycopg, postgresql+psycopg2 or sqlite"
            )
        return int(connection.exec_driver_sql(sql, tuple(values)).rowcount)

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_transaction())


class _Django:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def block(self) -> AbstractContextManager[Any]:
        transaction = importlib.import_module("django.db.transaction")  # the program's package, not one of ours
        block: AbstractContextManager[Any] = transaction.atomic(using=self._connection.alias)
        return block

    def execute(self, sql: str, values: Sequence[Any]) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, list(values))
            return int(cursor.rowcount)

    def is_in_transaction(self) -> bool:
        return bool(self._connection.in_atomic_block)
