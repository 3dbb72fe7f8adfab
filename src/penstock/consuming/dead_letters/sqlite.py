"""Dead letters in a table of an SQLite database."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.abc import Clock, Feature, Features
from penstock.consuming.dead_letters.file_hold import FileHold
from penstock.consuming.dead_letters.merging import admitted, merged
from penstock.consuming.dead_letters.rows import COLUMNS, TABLE, conditions, letter_of, row_of
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model import DeadLetter, LetterFilter, LetterState

BUSY_TIMEOUT_S: Final = 30.0

_SCHEMA: Final = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    consumer_group TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_partition INTEGER NOT NULL,
    pointer TEXT NOT NULL,
    record_key BLOB,
    record_value BLOB,
    headers TEXT NOT NULL,
    timestamp_ms INTEGER,
    error TEXT NOT NULL,
    error_kind TEXT NOT NULL,
    traceback TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    handler TEXT NOT NULL,
    handler_version TEXT NOT NULL,
    state TEXT NOT NULL,
    redrives INTEGER NOT NULL,
    taker TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS {TABLE}_by_state ON {TABLE} (state, place);
"""
_NAMES: Final = ", ".join(COLUMNS)
_AMONG: Final = "{column} IN (SELECT value FROM json_each({parameter}))"
_CONTAINS: Final = "instr({column}, {parameter}) > 0"
_THESE: Final = _AMONG.format(column="id", parameter=":ids")
"""Beside it stands `+state`: with `state`, SQLite would walk through all letters of a state to find the few by id."""


class SqliteDeadLetters:
    """`abc.DeadLetters` in an SQLite file, in the table `penstock_dead_letters`; other tables may stand beside it.

    Several processes may use the file at once. A letter is on the disk, not only in its cache, when `put` returns.
    """

    def __init__(self, path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(
                self.path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.OperationalError) as error:
            raise ConfigError(f"no SQLite database can be opened at {self.path}: {error}") from error
        try:
            with self._translated():
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")
                self._database.executescript(_SCHEMA)
        except BaseException:
            self._database.close()
            raise

    @property
    def features(self) -> Features:
        return frozenset({Feature.DURABLE})

    def put(self, letters: Sequence[DeadLetter]) -> None:
        if not letters:
            return
        with self._writing():
            for letter in map(admitted, letters):
                row = self._one(f"SELECT {_NAMES} FROM {TABLE} WHERE id = :id", {"id": letter.id})
                if row is None:
                    marks = ", ".join("?" * len(COLUMNS))
                    self._database.execute(f"INSERT INTO {TABLE} ({_NAMES}) VALUES ({marks})", row_of(letter))
                else:
                    changes = ", ".join(f"{column} = ?" for column in COLUMNS)
                    values = (*row_of(merged(letter_of(row), letter)), letter.id)
                    self._database.execute(f"UPDATE {TABLE} SET {changes}, taker = '' WHERE id = ?", values)

    def browse(self, which: LetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        condition, parameters = _conditions(which)
        with self._reading():
            place = self._place(after)
            return self._letters(
                f"SELECT {_NAMES} FROM {TABLE} WHERE place > :place AND {condition} ORDER BY place LIMIT :limit",
                {**parameters, "place": place, "limit": max(0, limit)},
            )

    def count(self, which: LetterFilter) -> int:
        condition, parameters = _conditions(which)
        with self._reading():
            row = self._one(f"SELECT count(*) FROM {TABLE} WHERE {condition}", parameters)
            assert row is not None
            return int(row[0])

    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        parameters = {"ids": json.dumps(list(ids)), "taker": taker, "taken": LetterState.TAKEN.value}
        with self._writing():
            self._database.execute(
                f"UPDATE {TABLE} SET state = :taken, taker = :taker WHERE {_THESE} AND +state IN (:waiting, :taken)",
                {**parameters, "waiting": LetterState.WAITING.value},
            )
            return self._letters(
                f"SELECT {_NAMES} FROM {TABLE} WHERE {_THESE} AND +state = :taken AND taker = :taker ORDER BY place",
                parameters,
            )

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        with self._writing():
            self._database.execute(
                f"UPDATE {TABLE} SET state = :state, redrives = redrives + :more, taker = ''"
                f" WHERE {_THESE} AND +state = :taken AND taker = :taker",
                {
                    "ids": json.dumps(list(ids)),
                    "taker": taker,
                    "taken": LetterState.TAKEN.value,
                    "state": (LetterState.REDRIVEN if redriven else LetterState.WAITING).value,
                    "more": int(redriven),
                },
            )

    def discard(self, ids: Collection[str]) -> int:
        with self._writing():
            return self._database.execute(
                f"UPDATE {TABLE} SET state = :discarded, taker = '' WHERE {_THESE} AND state != :discarded",
                {"ids": json.dumps(list(ids)), "discarded": LetterState.DISCARDED.value},
            ).rowcount

    def hold(self, holder: str, wait_s: float, clock: Clock) -> FileHold:
        """See `holding.Holdable`."""
        return FileHold(self.path, holder, clock)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._database.close()

    def _place(self, after: str | None) -> int:
        if after is None:
            return 0
        row = self._one(f"SELECT place FROM {TABLE} WHERE id = :id", {"id": after})
        if row is None:
            raise ConfigError(f"there is no dead letter {after!r} to go on after: begin without it")
        return int(row[0])

    def _one(self, query: str, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        row: tuple[Any, ...] | None = self._database.execute(query, parameters).fetchone()
        return row

    def _letters(self, query: str, parameters: Mapping[str, Any]) -> list[DeadLetter]:
        return [letter_of(row) for row in self._database.execute(query, parameters)]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, self._translated():
            yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction. It has the right to write from its beginning, so it never fails half-way for want of it."""
        with self._lock, self._translated():
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """SQLite's errors in our words."""
        if self._is_closed:
            raise ConfigError(f"the dead letters in {self.path} were closed: open them again")
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreUnavailableError(f"the dead letters in {self.path} cannot be used now: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"the dead letters in {self.path} cannot be used: {error}. Is it an SQLite database, and whole?"
            ) from error


def _conditions(which: LetterFilter) -> tuple[str, dict[str, Any]]:
    """The filter as SQL. Lists are passed as JSON, as SQLite has a limit on the number of parameters."""
    condition, parameters = conditions(which, _AMONG, _CONTAINS)
    lists = {name: json.dumps(value) for name, value in parameters.items() if isinstance(value, list)}
    return condition, {**parameters, **lists}
