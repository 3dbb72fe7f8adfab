"""The SQLite file of a history: made, opened, and put aside when it is damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import ConfigError

logger = logging.getLogger(__name__)

VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 5.0
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
_SUFFIXES: Final = ("", "-wal", "-shm")

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, name TEXT NOT NULL, metric TEXT NOT NULL,
    UNIQUE (kind, name, metric)
);
CREATE TABLE IF NOT EXISTS fine (series INTEGER, at_s INTEGER, value REAL, PRIMARY KEY (series, at_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS coarse (series INTEGER, at_s INTEGER, value REAL, PRIMARY KEY (series, at_s)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watched (id INTEGER PRIMARY KEY AUTOINCREMENT, began_s INTEGER, until_s INTEGER);
CREATE TABLE IF NOT EXISTS rolled (one INTEGER PRIMARY KEY CHECK (one = 1), until_s INTEGER NOT NULL);
INSERT OR IGNORE INTO rolled VALUES (1, 0);
PRAGMA user_version = {VERSION};
"""

Answer = TypeVar("Answer")


class HistoryFile:
    """One connection to the file. Not for several threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Grows when the file is begun anew: what was known of the rows in it holds no longer."""
        self._connection = self._open()

    def run(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Do this in a transaction. A file that proves to be damaged is put aside, and it is done in a new one."""
        return self._run(work, "BEGIN IMMEDIATE")

    def read(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The same for what changes nothing, and keeps nobody from writing."""
        return self._run(work, "BEGIN")

    def close(self) -> None:
        self._connection.close()

    def _run(self, work: Callable[[sqlite3.Connection], Answer], begin: str) -> Answer:
        try:
            return self._transaction(work, begin)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            self._put_aside(error)
            return self._transaction(work, begin)

    def _transaction(self, work: Callable[[sqlite3.Connection], Answer], begin: str) -> Answer:
        connection = self._connection
        connection.execute(begin)
        try:
            answer = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        return answer

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                self._put_aside(error)
                return self._connection
            raise ConfigError(f"the history cannot be kept in {self.path}: {error}") from error
        except OSError as error:
            raise ConfigError(f"the history cannot be kept in {self.path}: {error}") from error

    def _put_aside(self, error: sqlite3.Error) -> None:
        """Keep what is damaged beside the new file, for whoever wants to look at it; of several, the newest."""
        if hasattr(self, "_connection"):
            self._connection.close()
        for old in self.path.parent.glob(f"{self.path.name}.damaged-*"):
            old.unlink(missing_ok=True)
        aside = f"{self.path}.damaged-{time.time_ns() // 1_000_000}"
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.error("the history in %s is damaged (%s): it was moved to %s, and begins anew", self.path, error, aside)
        self.generation += 1
        self._connection = _connect(self.path)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it says that the file is not what it was. A disk that is full, or a file that is locked, does not."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise ConfigError(f"the history in {path} was written by a newer Penstock: upgrade, or name another file")
        if version < VERSION:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        connection.execute("SELECT count(*) FROM series, rolled").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection
