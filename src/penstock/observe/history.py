"""The past, in a SQLite file that does not grow for ever.

What is kept are steps: a value, and since when it holds. So a thousand topics where nothing happens cost nothing, and
one that is busy a line every ten seconds. After six hours steps are summed up to five minutes, and after two weeks they
go. Beside the steps the file says when somebody was looking, as a value holds only while it is looked at: hours in
which no console ran are missing in a series, and not made up.

Where more than a thousand numbers change all the time, they are kept in coarser steps, so that the file stays below
what a thousand need; and if it should still be larger than `limit_bytes`, the oldest goes sooner.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.observe.facts import Snapshot
from penstock.observe.history_file import HistoryFile
from penstock.observe.history_rolling import roll
from penstock.observe.measures import METRICS, Series, measured
from penstock.observe.steps import Step, means, merged

__all__ = ["METRICS", "History"]

logger = logging.getLogger(__name__)

FINE_S: Final = 10
"""How long steps are at least."""
SERIES_FOR_FINE: Final = 1_000
"""Beyond so many series steps are twice as long, beyond twice as many three times as long, and so on."""
ROLL_EVERY_S: Final = 300
LIMIT_BYTES: Final = 256 * 1024 * 1024
GAP_S: Final = 90
"""Who looks again within this time was looking all the while."""


class History:
    """Series of the past. Any thread may use it, and several processes may use one file."""

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
        """Which row says that we are looking, and until when it does."""
        self._roll_at_s = 0

    def add(self, snapshot: Snapshot) -> None:
        """Keep what has changed. Nothing of a snapshot with a problem, which tells nothing new.

        A history is worth less than what it is about: when it cannot be written, that is logged, and no error.
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
                self._last.clear()  # what of it was written is not known: all of it again, next time
                self._span = None
                if not self._is_troubled:  # a full disk would be told of at every look
                    logger.warning("the history in %s could not be written: %s", self.path, error)
                self._is_troubled = True
            else:
                self._is_troubled = False

    def series(self, kind: str, name: str, metric: str, since_ms: int, points: int = 300) -> list[tuple[int, float]]:
        """At most `points` of (time in ms, value), ascending: means of equal stretches of time, those left out in which
        nobody looked. The name is "" for the kind system. ConfigError for a metric that there is not."""
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
        first_s = first_s // length_s * length_s  # the same edges at the next call, so that a plot does not tremble
        edges = list(range(first_s, until_s + length_s, length_s))
        return [(at_s * 1000, value) for at_s, value in means(steps, spans, edges)]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._file.close()

    def _forget(self) -> None:
        """What we know of the rows in the file."""
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
    """The steps of a series from the one that held at `since_s` on, and when somebody looked."""
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
