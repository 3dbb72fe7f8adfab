"""A SQLite database as one process uses it: one connection that writes, one that reads, and whose turn it is."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.checkpoints.sqlite_connection import BEGIN, COMMIT, ROLLBACK, GuardedConnection, connect
from penstock.checkpoints.sqlite_schema import translated
from penstock.errors import ConfigError, ConnectionClosedError, StoreUnavailableError, TransactionError

MEMORY: Final = ":memory:"
"""A path that is none: the database lives as long as its connection, which then both writes and reads."""

Rows = list[tuple[Any, ...]]
OnConnect = Callable[[sqlite3.Connection], object]


class SqliteDatabase:
    """Statements by any thread, transactions by one at a time.

    SQLite itself lets only one connection write, but who waits for it sleeps for a while and looks again; threads of
    one process take turns by a lock, which is prompt. Reading waits for nobody.
    """

    def __init__(self, path: str, synchronous: str, busy_timeout_s: float, on_connect: OnConnect | None) -> None:
        self.path = path
        self._synchronous = synchronous
        self._busy_timeout_s = busy_timeout_s
        self._on_connect = on_connect
        self._process = os.getpid()
        self._is_closed = False
        self._turn = threading.Lock()
        self._turn_of: int | None = None
        self._reading = threading.Lock()
        self._open_writer()
        self._reader = self._writer if path == MEMORY else self._connect(None)

    def take_turn(self) -> None:
        """From now on, until `give_turn`, this thread is the one that writes."""
        if os.getpid() != self._process:
            raise ConfigError(
                f"{self.path} was opened by another process, and SQLite's connections must not cross a fork: open the "
                "store in the process that uses it"
            )
        me = threading.get_ident()
        if self._turn_of == me:
            raise TransactionError(
                "this thread is inside a transaction of this store: write with the transaction's own save(), and leave "
                "its block before another is begun"
            )
        if not self._turn.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailableError(
                f"{self.path}: another thread's transaction did not end within {self._busy_timeout_s:g} s"
            )
        self._turn_of = me

    def give_turn(self) -> None:
        self._turn_of = None
        self._turn.release()

    def begin(self) -> GuardedConnection:
        """The turn, and a transaction, until `commit` or `roll_back`."""
        self.take_turn()
        try:
            self.execute(BEGIN)
        except BaseException:
            self.give_turn()
            raise
        return self._writer

    def commit(self) -> None:
        try:
            self.execute(COMMIT)
        except BaseException:
            self._undo()
            raise
        finally:
            self._end()

    def roll_back(self) -> None:
        try:
            self._undo()
        finally:
            self._end()

    @property
    def cursor(self) -> sqlite3.Cursor:
        """Our own cursor of the connection that writes, for who has the turn: no row factory of a user's is in it."""
        return self._cursor

    def write(self, sql: str, values: tuple[Any, ...]) -> Rows:
        """One statement, which is a transaction of its own."""
        self.take_turn()
        try:
            return self.execute(sql, values)
        finally:
            self.give_turn()

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        """A statement by who has the turn: one that is a transaction of its own, or begins or ends one."""
        self._check_open()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise translated(error, self.path) from error
        # Somebody still holds a cursor of an earlier transaction, half read, and with it an old view of the database.
        self._writer.close()
        self._open_writer()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def read(self, sql: str, values: tuple[Any, ...] = ()) -> Rows:
        if self._reader is self._writer and self._turn_of != threading.get_ident():
            return self.write(sql, values)
        if os.getpid() != self._process:
            raise ConfigError(f"{self.path} was opened by another process: open the store in the one that uses it")
        with self._reading:
            self._check_open()
            try:
                cursor = self._reader.cursor()
                cursor.row_factory = None
                return cursor.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise translated(error, self.path) from error

    def close(self) -> None:
        self.take_turn()
        try:
            if self._is_closed:
                return
            self._is_closed = True
            with self._reading:
                self._reader.close()
                self._writer.close()
        finally:
            self.give_turn()

    def _undo(self) -> None:
        if self._writer.in_transaction:
            self._cursor.execute(ROLLBACK)

    def _end(self) -> None:
        self._writer.row_factory, self._writer.text_factory = self._factories
        self.give_turn()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the checkpoints in {self.path} have been closed")

    def _open_writer(self) -> None:
        self._writer = self._connect(self._on_connect)
        self._factories = (self._writer.row_factory, self._writer.text_factory)
        self._cursor = self._writer.cursor()
        self._cursor.row_factory = None

    def _connect(self, on_connect: OnConnect | None) -> GuardedConnection:
        try:
            if self.path != MEMORY:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            return connect(self.path, self._synchronous, self._busy_timeout_s, on_connect)
        except OSError as error:
            raise StoreUnavailableError(f"{self.path}: its folder cannot be made: {error}") from error
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
