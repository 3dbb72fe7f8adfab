"""SQLite: connections, tables, and a database as the threads of one process share it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from penstock.databases.schema import Schema
from penstock.errors import ConfigError, ConnectionClosedError, PenstockError, StoreUnavailableError, TransactionError
from penstock.model.retry import Retry

MEMORY: Final = ":memory:"
"""Not a path: the database lives as long as its connection, which then both writes and reads."""
BUSY_TIMEOUT_S: Final = 30.0
"""How long to wait for another writer."""
CACHED_STATEMENTS: Final = 256

# Unique texts: Python caches statements by their text, and the authorizer of a connection is not asked again for a
# cached one.
BEGIN: Final = "BEGIN IMMEDIATE /* penstock */"
COMMIT: Final = "COMMIT /* penstock */"
ROLLBACK: Final = "ROLLBACK /* penstock */"

BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
REFUSED: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
    }
)
_BUSY_POLLS: Final = Retry(None, first_delay_s=0.005, max_delay_s=0.1, jitter=0)

Rows = list[tuple[Any, ...]]
Values = Sequence[Any] | Mapping[str, Any]
OnConnect = Callable[[sqlite3.Connection], object]
Connection = TypeVar("Connection", bound=sqlite3.Connection)


def has_tables(path: Path, schema: Schema) -> bool:
    """Whether the file has the tables of a store; True if that is unknown. Changes nothing."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            return connection.execute(sql, (schema.version_table,)).fetchone() is not None
        finally:
            connection.close()
    except sqlite3.Error:
        return True  # opening it tells what is wrong


def connect(
    path: str | os.PathLike[str],
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    factory: type[Connection] = sqlite3.Connection,  # type: ignore[assignment]  # a default for a type variable
) -> Connection:
    """A connection that any thread may use, one at a time, and that begins no transaction by itself."""
    return sqlite3.connect(
        path,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
        factory=factory,
    )


def primary_code(error: BaseException) -> int:
    """SQLite's primary error code; 0 for other errors."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def translated(error: sqlite3.Error, path: str, schema: Schema) -> PenstockError | sqlite3.Error:
    """The Penstock error for a SQLite error, if there is one."""
    code = primary_code(error)
    if code in BUSY:
        return StoreUnavailableError(
            f"{path}: another process or thread wrote to this database for too long ({error}); "
            f"keep transactions short, or put the {schema.what} into their own database"
        )
    if code in DAMAGED:
        return schema.damaged(
            f"{path}: this SQLite database is damaged ({error}). Restore it from a backup, rescue "
            f"what can be read with `sqlite3 FILE .recover`, or remove it and its {schema.what}"
        )
    if code in REFUSED:
        return StoreUnavailableError(
            f"{path}: SQLite cannot use this file: {error}; check the disk and the file's permissions"
        )
    return error


def prepare(connection: sqlite3.Connection, path: str, schema: Schema, synchronous: str, timeout_s: float) -> None:
    """Switch to a write-ahead log, and create missing tables. Many processes may do this at once."""
    _retrying(lambda: _switch_to_wal(connection, path), timeout_s)
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    _retrying(lambda: _make_tables(connection, path, schema), timeout_s)


def _retrying(step: Callable[[], None], timeout_s: float) -> None:
    """Repeat a step for a while if the database is busy.

    SQLite itself waits for a writer to end, but not while a database changes to WAL or is recovered after a crash.
    """
    deadline = time.monotonic() + timeout_s
    delays_s = _BUSY_POLLS.delays_s()
    while True:
        try:
            return step()
        except sqlite3.Error as error:
            if primary_code(error) not in BUSY or time.monotonic() > deadline:
                raise
        time.sleep(next(delays_s))


def _switch_to_wal(connection: sqlite3.Connection, path: str) -> None:
    try:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    except sqlite3.DatabaseError as error:
        if primary_code(error) == sqlite3.SQLITE_NOTADB:
            raise ConfigError(
                f"{path} is not a SQLite database, or its first page is damaged: choose another file, or restore this "
                "one from a backup"
            ) from error
        raise
    if mode not in ("wal", "memory"):
        raise ConfigError(
            f"{path}: SQLite cannot keep a write-ahead log here (journal_mode is {mode}): put the file on a local disk"
        )


def _make_tables(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    if not _missing(connection, path, schema):
        return
    connection.execute(BEGIN)  # check under the lock, so that only one process creates the tables
    try:
        for statement in _missing(connection, path, schema):  # none, if another process was faster
            connection.execute(statement)
        connection.execute(COMMIT)
    except BaseException as error:
        connection.execute(ROLLBACK)
        if primary_code(error) == sqlite3.SQLITE_ERROR:
            raise ConfigError(
                f"{path} has tables named penstock_... that this program did not create ({error}): choose another file"
            ) from error
        raise


def _missing(connection: sqlite3.Connection, path: str, schema: Schema) -> tuple[str, ...]:
    """The statements that create the tables, or upgrade them."""
    made = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    if connection.execute(made, (schema.version_table,)).fetchone() is None:
        return schema.creation()
    return schema.upgrade(connection.execute(f"SELECT version FROM {schema.version_table}").fetchall(), path)


class SqliteDatabase(Generic[Connection]):
    """The tables of a schema: statements from any thread, transactions from one at a time.

    SQLite itself allows only one writer, but a waiting connection polls; threads of one process take turns by a lock,
    which is prompt. Readers have a connection of their own, and never wait.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        *,
        synchronous: str,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        factory: type[Connection] = sqlite3.Connection,  # type: ignore[assignment]  # a default for a type variable
        on_connect: OnConnect | None = None,
    ) -> None:
        self.path = path
        self._schema = schema
        self._synchronous = synchronous
        self._busy_timeout_s = busy_timeout_s
        self._factory = factory
        self._on_connect = on_connect
        self._process = os.getpid()
        self._is_closed = False
        self._turn = threading.Lock()
        self._turn_of: int | None = None
        self._reading = threading.Lock()
        self._open_writer()
        self._reader = self._writer if path == MEMORY else self._connect()

    def take_turn(self) -> None:
        """Make this thread the writer until `give_turn`."""
        self._check_process()
        me = threading.get_ident()
        if self._turn_of == me:
            raise TransactionError(
                "this thread is inside a transaction of this store: write with the transaction's own save(), and leave "
                "its block before beginning another"
            )
        if not self._turn.acquire(timeout=self._busy_timeout_s):
            raise StoreUnavailableError(
                f"{self.path}: another thread's transaction did not end within {self._busy_timeout_s:g} s"
            )
        self._turn_of = me

    def give_turn(self) -> None:
        self._turn_of = None
        self._turn.release()

    def begin(self) -> Connection:
        """Take the turn and begin a transaction, until `commit` or `roll_back`."""
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

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Cursor]:
        """Commit at the end of the block, roll back if it raises. Translates the database's errors."""
        self.begin()
        try:
            yield self._cursor
        except BaseException as error:
            self.roll_back()
            if isinstance(error, sqlite3.Error):
                raise self.translated(error) from error
            raise
        self.commit()

    @property
    def cursor(self) -> sqlite3.Cursor:
        """The store's own cursor of the writing connection, unaffected by a user's row factory. Needs the turn."""
        return self._cursor

    def write(self, sql: str, values: Values) -> Rows:
        """Execute one statement as its own transaction."""
        self.take_turn()
        try:
            return self.execute(sql, values)
        finally:
            self.give_turn()

    def execute(self, sql: str, values: Values = ()) -> Rows:
        """Execute a statement that is its own transaction, or begins or ends one. Needs the turn."""
        self._check_open()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise self.translated(error) from error
        # A cursor of an earlier transaction is still open, half read, and keeps an old snapshot of the database.
        self._writer.close()
        self._open_writer()
        try:
            return self._cursor.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self.translated(error) from error

    def read(self, sql: str, values: Values = ()) -> Rows:
        if self._reader is self._writer and self._turn_of != threading.get_ident():
            return self.write(sql, values)
        self._check_process()
        with self._reading:
            self._check_open()
            try:
                cursor = self._reader.cursor()
                cursor.row_factory = None
                return cursor.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise self.translated(error) from error

    def translated(self, error: sqlite3.Error) -> PenstockError | sqlite3.Error:
        """The Penstock error for a SQLite error, if there is one."""
        return translated(error, self.path, self._schema)

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

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ConfigError(
                f"{self.path} was opened by another process, and SQLite connections must not cross a fork: open the "
                "store in the process that uses it"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionClosedError(f"the {self._schema.what} in {self.path} are closed: open them again")

    def _open_writer(self) -> None:
        self._writer = self._connect(self._on_connect)
        self._factories = (self._writer.row_factory, self._writer.text_factory)
        self._cursor = self._writer.cursor()
        self._cursor.row_factory = None

    def _connect(self, on_connect: OnConnect | None = None) -> Connection:
        try:
            if self.path != MEMORY:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            connection = connect(self.path, self._busy_timeout_s, self._factory)
            try:
                prepare(connection, self.path, self._schema, self._synchronous, self._busy_timeout_s)
                if on_connect is not None:
                    on_connect(connection)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise StoreUnavailableError(f"{self.path}: its folder cannot be created: {error}") from error
        except sqlite3.Error as error:
            raise self.translated(error) from error
        return connection
