"""Dead letters in a table of an SQLite database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from penstock.abc import Clock
from penstock.databases.sqlite import BUSY_TIMEOUT_S, SqliteDatabase
from penstock.dead_letters.holding import FileHold
from penstock.dead_letters.rows import SqlDeadLetters, schema

SCHEMA: Final = schema("INTEGER PRIMARY KEY AUTOINCREMENT", "INTEGER", "BLOB")


class SqliteDeadLetters(SqlDeadLetters):
    """`abc.DeadLetters` in an SQLite file, in the table `penstock_dead_letters`; the file may have other tables.

    Several processes may use the file at once. A letter is on disk, not only in its cache, when `put` returns.
    """

    _mark = "?"
    _among = "{column} IN (SELECT value FROM json_each({parameter}))"
    _contains = "instr({column}, {parameter}) > 0"
    _state = "+state"
    """With `state`, SQLite would scan all letters of a state to find a few by id."""

    def __init__(self, path: str | Path, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = Path(path)
        self._database: SqliteDatabase[sqlite3.Connection] = SqliteDatabase(
            str(self.path), SCHEMA, synchronous="FULL", busy_timeout_s=busy_timeout_s
        )

    def hold(self, holder: str, wait_s: float, clock: Clock) -> FileHold:
        """See `holding.Holdable`."""
        return FileHold(self.path, holder, clock)

    def close(self) -> None:
        self._database.close()

    def _transaction(self) -> AbstractContextManager[sqlite3.Cursor]:
        return self._database.transaction()

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        return self._database.read(sql, parameters)

    def _list(self, values: Collection[str]) -> str:
        return json.dumps(list(values))  # SQLite limits the number of parameters

    def _lock(self, cursor: Any, parameters: Mapping[str, Any], *, to_put: bool = False) -> None:
        """Nothing to do: a transaction is the only writer."""
