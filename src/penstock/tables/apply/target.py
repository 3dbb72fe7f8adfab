"""The table that changes are written to, in PostgreSQL or SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.databases.statements import (
    ExistingTable,
    describe_postgres,
    describe_sqlite,
    listed,
    names_in,
    quoted,
    upsert_tail,
)
from penstock.errors import ConfigError, SchemaMismatchError, StoreUnavailableError
from penstock.tables.apply.decoding import Row, RowChange
from penstock.tables.apply.fitting import Convert, key_converter, postgres_converter, sqlite_converter, type_of
from penstock.tables.cdc.records import UNAVAILABLE
from penstock.tables.changes import Outcome

URLS: Final = "postgresql://USER@HOST/DATABASE or sqlite:FILE"


def is_sqlite(url: str) -> bool:
    """Whether a database's URL is of SQLite. Raises ConfigError unless it is of SQLite or PostgreSQL."""
    if url.startswith("sqlite:"):
        return True
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"{url.partition(':')[0]!r} is not a database whose tables can be written: use {URLS}")
    return False


class TargetTable:
    """Writes rows in the transactions of its caller. Used by one thread."""

    def __init__(
        self, name: str, *, is_sqlite: bool, create: bool = True, evolve: bool = True, is_plain: bool = False
    ) -> None:
        """`create` a missing table, and `evolve`: add missing columns. `is_plain`: each row has all there is, so what
        it lacks is null, and keys are text."""
        self.name = name
        self._names = names_in(name)
        self._sql_name = quoted(*self._names)
        self._is_sqlite = is_sqlite
        self._create = create
        self._evolve = evolve
        self._is_plain = is_plain
        self._place = "?" if is_sqlite else "%s"
        self._converters: dict[str, Convert] = {}
        self._key: tuple[str, ...] = ()
        self._unfilled: tuple[str, ...] = ()
        """The columns that are null unless a row has them."""
        self._was_altered = False
        self._is_ordered = False
        """Another unique index than the key's: changes must be made one by one, in their order."""

    def forget(self) -> None:
        """Look at the table again before the next write: another connection, or a rollback, may have changed it."""
        self._converters = {}
        self._was_altered = False

    def apply(self, connection: Any, changes: Sequence[RowChange]) -> None:
        """Make these changes, in their order. Raises SchemaMismatchError for what does not fit, or would lose data."""
        changes = self._since_truncate(connection, changes)
        if not changes or (not self._converters and not self._look(connection, changes)):
            return
        self._add_columns(connection, changes)
        if self._is_ordered or any(map(self._is_partial, changes)):
            for change in changes:
                self._apply_some(connection, [change])
        else:
            last = {tuple(change.key.values()): change for change in changes}
            self._apply_some(connection, list(last.values()))
        if self._was_altered:
            self.forget()  # this transaction may yet be rolled back

    def delete(self, connection: Any, keys: Iterable[Row]) -> None:
        """Delete the rows with these keys."""
        rows = [[self._converted(name, key[name], key) for name in self._key] for key in keys]
        if rows:
            where = " AND ".join(f"{quoted(name)} = {self._place}" for name in self._key)
            self._many(connection, f"DELETE FROM {self._sql_name} WHERE {where}", rows)

    def _since_truncate(self, connection: Any, changes: Sequence[RowChange]) -> list[RowChange]:
        last = max((i for i, change in enumerate(changes) if change.outcome is Outcome.TRUNCATE), default=-1)
        if last >= 0 and self._described(connection) is not None:
            self._execute(connection, f"DELETE FROM {self._sql_name}")
        return [each for each in changes[last + 1 :] if each.outcome is not Outcome.NOTHING]

    def _apply_some(self, connection: Any, changes: Sequence[RowChange]) -> None:
        self.delete(connection, (each.key for each in changes if each.outcome is Outcome.DELETE))
        by_columns: dict[tuple[str, ...], list[list[Any]]] = {}
        for change in changes:
            if change.outcome is not Outcome.SET:
                continue
            is_partial = self._is_partial(change)
            values = change.row
            if self._is_plain:
                values = {**dict.fromkeys(self._unfilled), **change.row, **change.key}
            # A column that the table lacks has been null so far.
            row = {
                name: self._converted(name, each, change.key)
                for name, each in values.items()
                if name in self._converters and not (is_partial and each == UNAVAILABLE)
            }
            if is_partial:
                self._update(connection, row)  # if there is no such row, its delete follows
                continue
            by_columns.setdefault(tuple(row), []).append(list(row.values()))
        for columns, rows in by_columns.items():
            places = ", ".join([self._place] * len(columns))
            tail = upsert_tail(columns, self._key)
            self._many(connection, f"INSERT INTO {self._sql_name} ({listed(columns)}) VALUES ({places}){tail}", rows)

    def _is_partial(self, change: RowChange) -> bool:
        """Whether the database did not send all values of the row."""
        return not self._is_plain and UNAVAILABLE in change.row.values()

    def _update(self, connection: Any, row: Row) -> None:
        columns = [name for name in row if name not in self._key]
        if columns:
            changes = ", ".join(f"{quoted(name)} = {self._place}" for name in columns)
            where = " AND ".join(f"{quoted(name)} = {self._place}" for name in self._key)
            values = [row[name] for name in (*columns, *self._key)]
            self._many(connection, f"UPDATE {self._sql_name} SET {changes} WHERE {where}", [values])

    def _look(self, connection: Any, changes: Sequence[RowChange]) -> bool:
        """Read the columns of the table, or create it. Returns whether it is there."""
        existing = self._described(connection)
        key = next(change.key for change in changes)
        if existing is None:
            first = next((each for each in changes if each.outcome is Outcome.SET), None)
            if first is None:
                return False  # nothing to delete
            if not self._create:
                raise SchemaMismatchError(f"there is no table {self.name}: create it, or allow it with --create")
            columns = ", ".join(
                f"{quoted(name)} {type_of(self._typical(first, name), is_sqlite=self._is_sqlite, is_key=True)} NOT NULL"
                for name in first.key
            )
            key = first.key
            self._execute(connection, f"CREATE TABLE {self._sql_name} ({columns}, PRIMARY KEY ({listed(key)}))")
            self._was_altered = True
            existing = self._described(connection)
            assert existing is not None, "it was just created"
        self._take(existing, tuple(key))
        return True

    def _typical(self, change: RowChange, name: str) -> Any:
        """A value of a column of the key. The text of a plain key may be that of the row's whole number."""
        number = change.row.get(name)
        return number if self._is_plain and type(number) is int else change.key[name]

    def _take(self, existing: ExistingTable, key: tuple[str, ...]) -> None:
        wanted = frozenset(key)
        missing = sorted(wanted - existing.columns.keys())
        if missing:
            raise SchemaMismatchError(
                f"table {self.name} has no column {missing[0]!r}, a part of the key of the captured table: add it"
            )
        if wanted not in existing.unique:
            raise SchemaMismatchError(
                f"table {self.name} has no primary key or unique index over ({', '.join(key)}), the key of the "
                "captured table: add one, so that each row is written once"
            )
        make = sqlite_converter if self._is_sqlite else postgres_converter
        self._converters = {name: make(column.declared) for name, column in existing.columns.items()}
        if self._is_plain:
            for name in key:
                declared = existing.columns[name].declared
                self._converters[name] = key_converter(self._converters[name], declared, is_sqlite=self._is_sqlite)
            self._unfilled = tuple(each.name for each in existing.columns.values() if not each.has_default)
        self._key = key
        self._is_ordered = len(existing.unique - {wanted, frozenset()}) > 0

    def _add_columns(self, connection: Any, changes: Sequence[RowChange]) -> None:
        missing: dict[str, Any] = {}
        for change in changes:
            for name, value in change.row.items():
                if value is not None and name not in self._converters and (self._is_plain or value != UNAVAILABLE):
                    missing.setdefault(name, value)
        for name, value in missing.items():
            kind = type_of(value, is_sqlite=self._is_sqlite, is_key=False)
            if not self._evolve:
                raise SchemaMismatchError(
                    f"table {self.name} has no column {name!r}, and adding columns is off: ALTER TABLE "
                    f"{self._sql_name} ADD COLUMN {quoted(name)} {kind}, or allow it with --evolve"
                )
            self._execute(connection, f"ALTER TABLE {self._sql_name} ADD COLUMN {quoted(name)} {kind}")
        if missing:
            self._was_altered = True
            existing = self._described(connection)
            assert existing is not None, "it has just been altered"
            self._take(existing, self._key)

    def _converted(self, name: str, value: Any, key: Mapping[str, Any]) -> Any:
        if value is None:
            return None
        try:
            return self._converters[name](value)
        except ValueError as error:
            raise SchemaMismatchError(
                f"table {self.name}, column {name!r}, row {dict(key)}: {str(value)[:100]!r} does not fit: {error}. "
                "Change the column's type; nothing was written, and the applier continues with this row"
            ) from error

    def _described(self, connection: Any) -> ExistingTable | None:
        def execute(statement: str, values: Sequence[Any] | None) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = connection.execute(statement, values or ()).fetchall()
            return rows

        return (describe_sqlite if self._is_sqlite else describe_postgres)(execute, self._names)

    def _execute(self, connection: Any, statement: str) -> None:
        self._many(connection, statement, [[]])

    def _many(self, connection: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        try:
            if rows == [[]]:
                connection.execute(statement)
            else:
                cursor = connection.cursor()
                try:
                    cursor.executemany(statement, rows)
                finally:
                    cursor.close()
        except (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.OperationalError, OverflowError) as error:
            if "locked" in str(error) or "disk" in str(error):
                raise StoreUnavailableError(
                    f"the SQLite database of table {self.name} is unavailable: {error}"
                ) from error
            raise self._refused(error) from error
        except Exception as error:
            # Data, integrity, and syntax or access: the classes 22, 23 and 42 of PostgreSQL.
            if str(getattr(error, "sqlstate", None))[:2] in ("22", "23", "42"):
                raise self._refused(error) from error
            raise

    def _refused(self, error: BaseException) -> SchemaMismatchError:
        text = " ".join(str(error).split())
        return SchemaMismatchError(
            f"table {self.name} refuses rows of the topic: {text}. Change the table so that it takes them; nothing was "
            "written, and the applier continues with these rows"
        )
