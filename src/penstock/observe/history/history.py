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
import itertools
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from penstock.databases.sqlite import DAMAGED, connect, primary_code
from penstock.errors import ConfigError
from penstock.observe.facts import GroupFacts, PipelineFacts, QueryFacts, Snapshot, TopicFacts, total

METRICS: Final[Mapping[str, Mapping[str, str]]] = {
    "system": {
        "rate_per_s": "Records appended a second, to all topics but internal ones.",
        "read_per_s": "Records read a second, by all groups.",
        "lag": "Records that groups have not read, in total.",
        "lag_s": "How long the oldest of them has been waiting, in seconds.",
        "letters": "Dead letters that wait, in all stores.",
    },
    "topic": {
        "rate_per_s": "Records appended a second.",
        "size_bytes": "Bytes on the disk.",
        "records": "Records that can be read.",
    },
    "group": {
        "lag": "Records that it has not read.",
        "lag_s": "How long the oldest of them has been waiting, in seconds.",
        "rate_per_s": "Records read a second.",
    },
    "letters": {"waiting": "Dead letters that wait."},
    "pipeline": {
        "rows_per_s": "Rows processed a second, by all queries.",
        "lag": "Records in the sources that its queries have not read.",
        "batch_s": "How long the last batch took, of the slowest query.",
        "state_rows": "Rows that stateful operators keep.",
        "rows_late": "Rows of this run that arrived after their windows were closed.",
    },
    "query": {
        "rows_per_s": "Rows processed a second.",
        "lag": "Records in its sources that it has not read.",
        "batch_s": "How long the last batch took.",
        "state_rows": "Rows that its stateful operators keep.",
        "rows_late": "Rows of this run that arrived after their windows were closed.",
    },
}
"""The metrics of each kind, with their meanings. The name of the subject is "" for the system, and PIPELINE/QUERY for a
query."""

Series = tuple[str, str, str]
_DIGITS: Final = 4


def measured(snapshot: Snapshot) -> dict[Series, float | None]:
    """Every metric of everything in a snapshot; None where it is unknown.

    Values are rounded to four significant digits: smaller changes are not worth a row of history.
    """
    found: dict[Series, float | None] = {}
    topics = [each for each in snapshot.topics.values() if not each.is_internal]
    _add(found, "system", "", _system(snapshot, topics))
    for topic in topics:
        values = {"rate_per_s": topic.rate_per_s, "size_bytes": topic.size_bytes, "records": topic.records}
        _add(found, "topic", topic.name, values)
    for name, group in snapshot.groups.items():
        _add(found, "group", name, _group(group))
    for spec, letters in snapshot.letters.items():
        _add(found, "letters", spec, {"waiting": letters.waiting})
    for name, pipeline in snapshot.pipelines.items():
        _add(found, "pipeline", name, _pipeline(pipeline))
        for query in pipeline.queries:
            _add(found, "query", f"{name}/{query.query}", _query(query, pipeline.is_running))
    return found


def _system(snapshot: Snapshot, topics: list[TopicFacts]) -> dict[str, float | None]:
    rates = [each.rate_per_s for each in topics if each.rate_per_s is not None]
    reads = [each.rate_per_s for each in snapshot.groups.values() if each.rate_per_s is not None]
    return {
        "rate_per_s": sum(rates) if rates or not topics else None,
        "read_per_s": sum(reads) if reads or not snapshot.groups else None,
        "lag": total(each.lag for each in snapshot.groups.values()),
        "lag_s": max((each.lag_s for each in snapshot.groups.values() if each.lag_s is not None), default=None),
        "letters": sum(each.waiting for each in snapshot.letters.values()),
    }


def _group(group: GroupFacts) -> dict[str, float | None]:
    return {"lag": group.lag, "lag_s": group.lag_s, "rate_per_s": group.rate_per_s}


def _pipeline(pipeline: PipelineFacts) -> dict[str, float | None]:
    queries = pipeline.queries
    running = queries if pipeline.is_running else ()
    return {
        "rows_per_s": sum(each.rows_per_s for each in running),
        "lag": pipeline.lag,
        "batch_s": max((each.batch_s for each in running), default=None),
        "state_rows": sum(each.state_rows for each in queries),
        "rows_late": sum(each.rows_late for each in queries),
    }


def _query(query: QueryFacts, is_running: bool) -> dict[str, float | None]:
    return {
        "rows_per_s": query.rows_per_s if is_running else 0.0,
        "lag": query.lag,
        "batch_s": query.batch_s if is_running else None,
        "state_rows": query.state_rows,
        "rows_late": query.rows_late,
    }


def _add(found: dict[Series, float | None], kind: str, name: str, values: Mapping[str, float | None]) -> None:
    assert values.keys() == METRICS[kind].keys()
    for metric, value in values.items():
        found[kind, name, metric] = None if value is None or not math.isfinite(value) else _rounded(value)


def _rounded(value: float) -> float:
    if value == 0 or abs(value) >= 10**_DIGITS:
        return float(round(value))
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))


Step = tuple[int, float | None]
"""From this second on, this value; None: unknown."""
Span = tuple[int, int]
"""From this second until, not including, that one."""


def merged(spans: Iterable[Span], gap_s: int) -> list[Span]:
    """The spans in order, with those merged that overlap or are at most `gap_s` apart."""
    found: list[Span] = []
    for began, until in sorted(spans):
        if found and began <= found[-1][1] + gap_s:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((began, until))
    return found


def means(steps: Sequence[Step], spans: Sequence[Span], edges: Sequence[int]) -> list[tuple[int, float]]:
    """The time-weighted mean of the known values between each edge and the next, within the spans.

    With the steps (0, 10), (40, 20) and one span over all, the edges 0 and 80 give (40 x 10 + 40 x 20) / 80 = 15.
    """
    sums = [0.0] * len(edges)
    known = [0] * len(edges)
    bucket = 0
    for began, until, value in _pieces(steps, spans):
        while bucket + 1 < len(edges) - 1 and edges[bucket + 1] <= began:
            bucket += 1
        index = bucket
        while index + 1 < len(edges) and edges[index] < until:
            length = min(until, edges[index + 1]) - max(began, edges[index])
            if length > 0:
                sums[index] += length * value
                known[index] += length
            index += 1
    return [(edges[index], sums[index] / known[index]) for index in range(len(edges)) if known[index]]


def coarser(steps: Sequence[Step], length: int, since: int, until: int) -> list[Step]:
    """The values from `since` until `until`, in buckets that start at multiples of `length`.

    Steps before `since` give the initial value. A bucket in which something changed has the time-weighted mean of the
    known values; else the last value holds. A bucket has a step only if its value differs from the previous one.
    """
    held = next((value for at, value in reversed(steps) if at < since), None)
    inside = [step for step in steps if since <= step[0] < until]
    found: list[Step] = []
    told = held
    for _, group in itertools.groupby(inside, key=lambda step: step[0] // length):
        changes = list(group)
        start = max(since, changes[0][0] // length * length)
        end = changes[0][0] // length * length + length
        if told != held and (not found or found[-1][0] < start):
            found.append((_behind(found, length, since), held))
            told = held
        own = [(start, held), *changes]
        mean = means(own, [(start, end)], [start, end])
        value = mean[0][1] if mean else None
        if found and found[-1][0] == start:
            found.pop()
        found.append((start, value))
        held, told = changes[-1][1], value
    if told != held:  # continuing at `until` must use the value that holds, not the last bucket's mean
        found.append((_behind(found, length, since), held))
    return found


def _behind(found: Sequence[Step], length: int, since: int) -> int:
    """Where the bucket after the last one starts."""
    return found[-1][0] // length * length + length if found else since


def _pieces(steps: Sequence[Step], spans: Sequence[Span]) -> Iterable[tuple[int, int, float]]:
    """Each interval within a span during which one known value held, in order."""
    index = 0
    for began, until in spans:
        while index + 1 < len(steps) and steps[index + 1][0] <= began:
            index += 1
        while index < len(steps) and steps[index][0] < until:
            at, value = steps[index]
            end = min(until, steps[index + 1][0] if index + 1 < len(steps) else until)
            if value is not None and end > max(at, began):
                yield max(at, began), end, value
            if index + 1 >= len(steps) or steps[index + 1][0] >= until:
                break
            index += 1


FINE_KEPT_S: Final = 6 * 3600
COARSE_S: Final = 300
COARSE_KEPT_S: Final = 14 * 86_400
SERIES_FOR_COARSE: Final = 1_000
_HALVINGS: Final = 8

_OLD: Final = """DELETE FROM {table} WHERE at_s < ?1 AND (value IS NULL OR EXISTS (
    SELECT 1 FROM {table} AS later WHERE later.series = {table}.series
    AND later.at_s > {table}.at_s AND later.at_s <= ?1))"""
"""A step is deleted when a later one held at that time already; the last one stays, however old it is."""


def roll(connection: sqlite3.Connection, now_s: int, limit_bytes: int) -> None:
    """Inside a transaction: average, delete, and keep the file below its limit."""
    count = _count(connection, "series")
    length_s = COARSE_S * (1 + count // SERIES_FOR_COARSE)
    _sum_up(connection, (now_s - FINE_KEPT_S) // length_s * length_s, length_s)
    _let_go(connection, now_s, COARSE_KEPT_S)
    for halving in range(1, _HALVINGS + 1):
        if used_bytes(connection) <= limit_bytes:
            break
        fine_kept_s = FINE_KEPT_S >> halving
        _sum_up(connection, (now_s - fine_kept_s) // length_s * length_s, length_s)
        _let_go(connection, now_s, COARSE_KEPT_S >> halving)


def used_bytes(connection: sqlite3.Connection) -> int:
    """The size of the file's rows; freed space is reused before the file grows."""
    (pages,), (free,), (size,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _sum_up(connection: sqlite3.Connection, until_s: int, length_s: int) -> None:
    (since_s,) = connection.execute("SELECT until_s FROM rolled").fetchone()
    if until_s <= since_s:
        return
    rows = connection.execute("SELECT series, at_s, value FROM fine WHERE at_s < ? ORDER BY series, at_s", (until_s,))
    summed = []
    for series, steps in itertools.groupby(rows.fetchall(), key=lambda row: row[0]):
        own = [(at_s, value) for _, at_s, value in steps]
        summed += [(series, at_s, value) for at_s, value in coarser(own, length_s, since_s, until_s)]
    connection.executemany("INSERT OR REPLACE INTO coarse VALUES (?, ?, ?)", summed)
    connection.execute("UPDATE rolled SET until_s = ?", (until_s,))
    connection.execute(_OLD.format(table="fine"), (until_s,))


def _let_go(connection: sqlite3.Connection, now_s: int, coarse_kept_s: int) -> None:
    connection.execute(_OLD.format(table="coarse"), (now_s - coarse_kept_s,))
    connection.execute("DELETE FROM watched WHERE until_s < ?", (now_s - coarse_kept_s,))
    connection.execute(
        "DELETE FROM series WHERE id NOT IN (SELECT series FROM fine) AND id NOT IN (SELECT series FROM coarse)"
    )


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


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
