"""PostgreSQL: a pool of connections that does not hand out dead ones, and tables."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from penstock.databases.schema import Schema
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    MissingExtraError,
    OutcomeUnknownError,
    PenstockError,
    StoreUnavailableError,
)

try:
    import psycopg
    import psycopg.conninfo
    from psycopg.rows import tuple_row
    from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
except ImportError as error:
    raise MissingExtraError("PostgreSQL", "postgres") from error

__all__ = ["PostgresConnection", "PostgresPool", "Rows", "make_tables", "psycopg", "rows_of"]

SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "penstock",
}
"""Defaults, unless the URL sets them: a lost server must be noticed even if it sends nothing."""
TIMEOUT_S: Final = 30.0
SLICE_S: Final = 0.05
"""How long to wait for the pool before looking whether connecting has failed."""
SET_UP_LOCK: Final = 0x70656E73746F636B
"""The advisory lock for creating tables: two concurrent `CREATE TABLE IF NOT EXISTS` may fail."""

Rows = list[tuple[Any, ...]]

# The pool warns of every failed attempt to connect. The caller gets that error; the warning is for those who configure
# logging, not for the terminal of those who do not.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class PostgresConnection(psycopg.Connection[Any]):
    """A connection in autocommit."""

    oldest_major: ClassVar[int] = 0
    """The oldest major version of PostgreSQL that will do."""

    @classmethod
    def connect(cls, conninfo: str = "", **settings: Any) -> Self:
        """Besides libpq's settings: `idle_in_transaction_s`, and `on_failure`, which is called with the error."""
        on_failure: Callable[[psycopg.Error], None] | None = settings.pop("on_failure", None)
        idle_in_transaction_s: float | None = settings.pop("idle_in_transaction_s", None)
        try:
            connection = super().connect(conninfo, autocommit=True, **settings)
            if connection.info.server_version < 10_000 * cls.oldest_major:
                version = connection.info.parameter_status("server_version")
                connection.close()
                raise psycopg.NotSupportedError(
                    f"PostgreSQL {version} is too old, {cls.oldest_major} or newer is needed: upgrade it"
                )
            if idle_in_transaction_s is not None:
                limit = f"{round(idle_in_transaction_s * 1000)}ms"
                connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (limit,))
        except psycopg.Error as error:
            if on_failure is not None:
                on_failure(error)
            raise
        return connection

    def is_idle(self) -> bool:
        """Whether it is open and outside a transaction. In a pipeline this is only known at its end."""
        return not self.closed and self.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def check(self) -> None:
        """Close an idle connection to which the server has sent something: mostly, that it shuts down."""
        if not self.closed:
            poll = select.poll()
            poll.register(self.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
            if not poll.poll(0):
                return
            self.close()
        raise psycopg.OperationalError("the server closed the connection")


Connection = TypeVar("Connection", bound=PostgresConnection)


class PostgresPool(Generic[Connection]):
    """At most `size` connections, opened when they are needed, for all threads of one process.

    `what` is kept in the database: "checkpoints". A thread that needs another connection waits for `timeout_s` until
    one is returned, but no longer than it takes to find out that the server is away.
    """

    def __init__(
        self,
        url: str,
        what: str,
        *,
        size: int,
        timeout_s: float = TIMEOUT_S,
        idle_in_transaction_s: float | None = None,
        connection_class: type[Connection] = PostgresConnection,  # type: ignore[assignment]  # a type variable's default
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        """`connect` is passed to `connection_class.connect`, and wins over what the URL says."""
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"the PostgreSQL URL for the {what} is invalid: {error}") from error
        self.what = what
        self.where = f"the PostgreSQL database {given.get('dbname') or 'of the user'!r} at " + str(
            given.get("host") or "localhost"
        )
        self.settings: dict[str, Any] = {**SETTINGS, **given}
        self._timeout_s = timeout_s
        self._process = os.getpid()
        self._failure: tuple[float, psycopg.Error] | None = None
        self._pool = ConnectionPool(
            kwargs={
                **self.settings,
                "on_failure": self._note_failure,
                "idle_in_transaction_s": idle_in_transaction_s,
                **(connect or {}),
            },
            connection_class=connection_class,
            min_size=0,
            max_size=size,
            check=connection_class.check,
            reconnect_timeout=0.0,  # the next thread that needs a connection tries again
            num_workers=1,
            open=True,
        )

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """An exclusive connection in autocommit. Translates the database's errors."""
        connection = self.take()
        try:
            yield connection
        except psycopg.Error as error:
            raise self.translated(error) from error
        finally:
            self.give(connection)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commit at the end of the block, roll back if it raises.

        OutcomeUnknownError: the connection was lost during the commit.
        """
        with self.connection() as connection:
            is_ending = False
            try:
                with connection.transaction():
                    yield connection
                    is_ending = True
            except psycopg.Error as error:
                if is_ending and connection.closed:
                    raise OutcomeUnknownError(f"{self.where} was lost during a commit: {_text(error)}") from error
                raise

    def execute(self, sql: str, values: Any = ()) -> Rows:
        """Execute one statement as its own transaction."""
        with self.connection() as connection:
            return rows_of(connection, sql, values)

    def take(self) -> Connection:
        """A connection, until `give`."""
        if os.getpid() != self._process:
            raise ConfigError(
                f"{self.where} was connected to by another process: open the store in the one that uses it"
            )
        begun = time.monotonic()
        while True:
            try:
                return self._pool.getconn(SLICE_S)
            except PoolClosed as error:
                raise ConnectionClosedError(f"the {self.what} in {self.where} are closed: open them again") from error
            except PoolTimeout:
                if self._failure is not None and self._failure[0] >= begun:
                    raise self.translated(self._failure[1]) from self._failure[1]
                if time.monotonic() - begun >= self._timeout_s:
                    raise StoreUnavailableError(
                        f"{self.where}: all connections of this store are in use, and none was returned within "
                        f"{self._timeout_s:g} s; raise max_connections, or keep transactions short"
                    ) from None

    def give(self, connection: Connection) -> None:
        """Take a connection back. A broken one, or one inside a transaction, is closed."""
        if not connection.is_idle():
            connection.close()
        self._pool.putconn(connection)

    def close(self) -> None:
        if os.getpid() == self._process:
            self._pool.close()

    def translated(self, error: psycopg.Error) -> PenstockError:
        """The Penstock error for a psycopg error."""
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
            return StoreUnavailableError(f"{self.where} is unavailable: {_text(error)}")
        return ConfigError(f"{self.where} refuses what the {self.what} need: {_text(error)}")

    def _note_failure(self, error: psycopg.Error) -> None:
        self._failure = (time.monotonic(), error)


def make_tables(pool: PostgresPool[Any], schema: Schema) -> None:
    """Create missing tables, in the first schema of the search path, and upgrade those of an older version.

    Many processes may do this at once.
    """
    with pool.connection() as connection:
        if not _missing(connection, schema, pool.where):
            return
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (SET_UP_LOCK,))
            for statement in _missing(connection, schema, pool.where):  # none, if another process was faster
                connection.execute(statement)


def rows_of(connection: PostgresConnection, sql: str, values: Any = ()) -> Rows:
    """All rows of a query as tuples, whatever row factory a user has set."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def has_tables(pool: PostgresPool[Any], schema: Schema) -> bool:
    """Whether the tables of a store are there. Raises ConfigError if they are of another version."""
    with pool.connection() as connection:
        return _missing(connection, schema, pool.where) != schema.creation()


def _missing(connection: PostgresConnection, schema: Schema, where: str) -> tuple[str, ...]:
    """The statements that create the tables, or upgrade them."""
    # Not to_regclass(), which may not yet see a table that another process has just committed.
    made = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = current_schema() AND tablename = %s"
    if not rows_of(connection, made, (schema.version_table,)):
        return schema.creation()
    return schema.upgrade(rows_of(connection, f"SELECT version FROM {schema.version_table}"), where)


def _text(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
