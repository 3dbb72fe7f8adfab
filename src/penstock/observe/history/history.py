"""The past of a stream, in a SQLite file of bounded size.

What is stored are steps: a value, and since when it holds. So a thousand idle topics cost nothing, and a busy one a row
every ten seconds. After six hours steps are averaged over five minutes, and after two weeks they are deleted. The file
also stores when the system was watched, as a value holds only while it is watched: hours in which no console ran are
gaps in a series.

Where more than a thousand numbers change all the time, their steps are coarser, so that the file stays below what a
thousand need; and if it should still exceed `limit_bytes`, the oldest rows go sooner.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from penstock.errors import ConfigError
from penstock.observe.facts import Snapshot
from penstock.observe.history.measures import METRICS, Series, measured
from penstock.observe.history.rolling import Step, means, merged, roll
from penstock.sql.sqlite import DAMAGED, connect, primary_code

VERSION: Final = 1
BUSY_TIMEOUT_S: Final = 5.0
_DAMAGED: Final = DAMAGED | {sqlite3.SQLITE_FORMAT}
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
        """Increases when the file is recreated: cached row ids are then invalid."""
        self._connection = self._open()

    def run(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Run `work` in a transaction. If the file is damaged, it is moved aside and the work repeated in a new one."""
        return self._run(work, "BEGIN IMMEDIATE")

    def read(self, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """The same for work that only reads, without blocking writers."""
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
        """Keep the damaged file beside the new one; of several, the newest."""
        if hasattr(self, "_connection"):
            self._connection.close()
        for old in self.path.parent.glob(f"{self.path.name}.damaged-*"):
            old.unlink(missing_ok=True)
        aside = f"{self.path}.damaged-{time.time_ns() // 1_000_000}"
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self.path}{suffix}", f"{aside}{suffix}")
        logger.error("the history in %s is damaged (%s): it was moved to %s, and starts again", self.path, error, aside)
        self.generation += 1
        self._connection = _connect(self.path)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the error means a damaged file, rather than a full disk or a locked file."""
    return primary_code(error) in _DAMAGED


def _connect(path: Path) -> sqlite3.Connection:
    connection: sqlite3.Connection = connect(path, BUSY_TIMEOUT_S)
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


__all__ = ["METRICS", "History"]

logger = logging.getLogger(__name__)

FINE_S: Final = 10
SERIES_FOR_FINE: Final = 1_000
"""Beyond this many series steps are twice as long, beyond twice as many three times as long, and so on."""
ROLL_EVERY_S: Final = 300
LIMIT_BYTES: Final = 256 * 1024 * 1024
GAP_S: Final = 90
"""Two looks within this time count as continuous watching."""


class History:
    """Time series of the past. Thread-safe, and several processes may use one file."""

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = Path(path)
        self._limit_bytes = limit_bytes
        self._file = HistoryFile(self.path)
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_troubled = False
        self._generation = self._file.generation
        self._ids: dict[Series, int] = {}
        self._last: dict[Series, float | None] = {}
        self._span: tuple[int, int] | None = None
        """The row that records our watching, and until when."""
        self._roll_at_s = 0

    def add(self, snapshot: Snapshot) -> None:
        """Store what has changed. A snapshot with a problem holds nothing new, and is ignored.

        A write that fails is logged and raises nothing: a history is less important than what it describes.
        """
        if snapshot.problem is not None:
            return
        now_s = snapshot.at_ms // 1000
        with self._lock:
            if self._is_closed:
                return
            if self._generation != self._file.generation:
                self._forget()
            values = measured(snapshot)
            try:
                self._file.run(lambda connection: self._write(connection, values, now_s))
                if now_s >= self._roll_at_s:
                    self._file.run(lambda connection: roll(connection, now_s, self._limit_bytes))
                    self._roll_at_s = now_s + ROLL_EVERY_S
                    self._ids.clear()
            except sqlite3.Error as error:
                self._last.clear()  # it is unknown what was written: write everything next time
                self._span = None
                if not self._is_troubled:  # log a full disk once, not at every look
                    logger.warning("the history in %s could not be written: %s", self.path, error)
                self._is_troubled = True
            else:
                self._is_troubled = False

    def series(self, kind: str, name: str, metric: str, since_ms: int, points: int = 300) -> list[tuple[int, float]]:
        """At most `points` of (time in ms, value), ascending: means over equal intervals, without those that were not
        watched. The name is "" for the kind system. Raises ConfigError for an unknown metric."""
        if metric not in METRICS.get(kind, {}):
            known = ", ".join(f"{kind} {name}" for kind, names in METRICS.items() for name in names)
            raise ConfigError(f"there is no history of {kind} {metric}; there is: {known}")
        since_s = since_ms // 1000
        with self._lock:
            if self._is_closed:
                return []
            try:
                steps, watched = self._file.read(lambda connection: _read(connection, (kind, name, metric), since_s))
            except sqlite3.Error as error:
                logger.warning("the history in %s could not be read: %s", self.path, error)
                return []
        spans = merged(watched, GAP_S)
        if not spans or not steps:
            return []
        first_s, until_s = max(since_s, spans[0][0], steps[0][0]), spans[-1][1]
        length_s = max(FINE_S // 2, -(-(until_s - first_s) // max(1, points - 1)))
        first_s = first_s // length_s * length_s  # the same edges at the next call, so that a plot does not shift
        edges = list(range(first_s, until_s + length_s, length_s))
        return [(at_s * 1000, value) for at_s, value in means(steps, spans, edges)]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._file.close()

    def _forget(self) -> None:
        self._generation = self._file.generation
        self._ids.clear()
        self._last.clear()
        self._span = None
        self._roll_at_s = 0

    def _write(self, connection: sqlite3.Connection, values: dict[Series, float | None], now_s: int) -> None:
        self._keep_watching(connection, now_s)
        gone = {series: None for series in self._last if series not in values}
        changed = {
            series: value
            for series, value in [*values.items(), *gone.items()]
            if series not in self._last or self._last[series] != value
        }
        length_s = FINE_S * (1 + len(values) // SERIES_FOR_FINE)
        at_s = now_s // length_s * length_s
        rows = [(self._id(connection, series), at_s, value) for series, value in changed.items()]
        connection.executemany("INSERT OR REPLACE INTO fine VALUES (?, ?, ?)", rows)
        self._last |= changed
        for series in gone:
            del self._last[series]

    def _keep_watching(self, connection: sqlite3.Connection, now_s: int) -> None:
        if self._span is not None and not self._span[1] <= now_s <= self._span[1] + GAP_S:
            self._span = None
            self._last.clear()
        if self._span is None:
            cursor = connection.execute("INSERT INTO watched (began_s, until_s) VALUES (?, ?)", (now_s, now_s + 1))
            self._span = (int(cursor.lastrowid or 0), now_s)
            return
        connection.execute("UPDATE watched SET until_s = ? WHERE id = ?", (now_s + 1, self._span[0]))
        self._span = (self._span[0], now_s)

    def _id(self, connection: sqlite3.Connection, series: Series) -> int:
        known = self._ids.get(series)
        if known is None:
            connection.execute("INSERT OR IGNORE INTO series (kind, name, metric) VALUES (?, ?, ?)", series)
            row = connection.execute("SELECT id FROM series WHERE kind = ? AND name = ? AND metric = ?", series)
            known = self._ids[series] = int(row.fetchone()[0])
        return known


def _read(connection: sqlite3.Connection, series: Series, since_s: int) -> tuple[list[Step], list[tuple[int, int]]]:
    """The steps of a series from the one that held at `since_s` on, and when the system was watched."""
    found = connection.execute("SELECT id FROM series WHERE kind = ? AND name = ? AND metric = ?", series).fetchone()
    if found is None:
        return [], []
    (rolled_s,) = connection.execute("SELECT until_s FROM rolled").fetchone()
    steps: list[Step] = []
    for table, from_s, until_s in (("coarse", since_s, rolled_s), ("fine", max(since_s, rolled_s), None)):
        held = f"SELECT max(at_s) FROM {table} WHERE series = ?1 AND at_s <= ?2"
        rows = connection.execute(
            f"SELECT at_s, value FROM {table} WHERE series = ?1 AND at_s >= coalesce(({held}), ?2) ORDER BY at_s",
            (found[0], from_s),
        )
        steps += [step for step in rows if until_s is None or step[0] < until_s]
    steps.sort(key=lambda step: step[0])
    spans = connection.execute("SELECT began_s, until_s FROM watched WHERE until_s >= ?", (since_s,))
    return steps, [(int(began), int(until)) for began, until in spans]
