"""Connections to PostgreSQL, kept open between uses; those that died in the meantime are not handed out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.checkpoints.postgres_connection import GuardedConnection, Rows, psycopg, rows_of
from penstock.errors import ConfigError, ConnectionClosedError, PenstockError, StoreUnavailableError
from penstock.streams.url import without_password

SETTINGS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "fallback_application_name": "penstock",
}
"""Where the URL says nothing else: a server that has gone must be noticed, also when it says nothing."""


class Pool:
    """At most `size` connections. A thread that needs one more waits until another is given back."""

    def __init__(self, url: str, size: int, timeout_s: float, idle_in_transaction_s: float) -> None:
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(f"the PostgreSQL URL {without_password(url)!r} cannot be understood: {error}") from error
        self._settings: dict[str, Any] = {**SETTINGS, **given}
        host = given.get("host") or "localhost"
        self.where = f"the PostgreSQL database {given.get('dbname') or 'of the user'!r} at {host}"
        self._timeout_s = timeout_s
        self._idle_in_transaction_s = idle_in_transaction_s
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[GuardedConnection] = []
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._is_closed = False

    @contextmanager
    def connection(self) -> Iterator[GuardedConnection]:
        """A connection that nobody else has, in autocommit. Errors of the database come out translated."""
        connection = self.take()
        try:
            yield connection
        except psycopg.Error as error:
            raise self.translated(error) from error
        finally:
            self.give(connection)

    def execute(self, sql: str, values: Any = ()) -> Rows:
        """One statement, which is a transaction of its own."""
        with self.connection() as connection:
            return rows_of(connection, sql, values)

    def take(self) -> GuardedConnection:
        if os.getpid() != self._process:
            raise ConfigError(
                f"{self.where} was connected to by another process: open the store in the one that uses it"
            )
        if not self._free.acquire(timeout=self._timeout_s):
            raise StoreUnavailableError(
                f"{self.where}: all connections of this store are in use, and none was given back within "
                f"{self._timeout_s:g} s; raise max_connections, or keep transactions short"
            )
        try:
            return self._alive() or self._connect()
        except BaseException:
            self._free.release()
            raise

    def give(self, connection: GuardedConnection) -> None:
        """Take a connection back. One that is broken, or in the middle of something, is closed."""
        is_idle = connection.is_idle()
        with self._lock:
            is_kept = is_idle and not self._is_closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            connection.close()
        self._free.release()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        if os.getpid() == self._process:
            for connection in idle:
                connection.close()

    def translated(self, error: psycopg.Error) -> PenstockError:
        """The error that our user can do something about."""
        text = " ".join(str(error).split())
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.InternalError):
            return StoreUnavailableError(f"{self.where} cannot be reached, or refused for now: {text}")
        return ConfigError(f"{self.where} refuses what a checkpoint store needs: {text}")

    def _alive(self) -> GuardedConnection | None:
        while True:  # ends: each round takes one away
            with self._lock:
                if self._is_closed:
                    raise ConnectionClosedError(f"the checkpoints in {self.where} have been closed")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not connection.has_news():
                return connection
            connection.close()

    def _connect(self) -> GuardedConnection:
        try:
            connection = GuardedConnection.connect(autocommit=True, **self._settings)
            idle_ms = round(self._idle_in_transaction_s * 1000)
            connection.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (f"{idle_ms}ms",))
        except psycopg.Error as error:
            raise self.translated(error) from error
        return connection
