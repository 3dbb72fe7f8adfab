"""`compare`: do two tables in different databases have the same rows, while changes flow from one to the other?

A row that differs may only be late: the change is on its way. So it is read again, several times and with pauses. Only
a row that differs each time, while its source stays as it is, is reported.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

from penstock.databases.statements import names_in
from penstock.errors import ConfigError, SchemaMismatchError
from penstock.tables.apply.compared_tables import ComparedTable, Key, Rows, is_mysql, open_compared
from penstock.tables.apply.decoding import Row, RowChange
from penstock.tables.apply.target import TargetTable, is_sqlite
from penstock.tables.changes import Outcome

_MOMENT: Final = re.compile(r"(?:[0-9]+-[0-9]{2}-[0-9]{2}T)?-?[0-9]{2,3}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z?")
_PAGE: Final = 1_000
_LARGEST_PAGE: Final = 5_000


class Drift(StrEnum):
    """How a row differs."""

    MISSING = "missing"
    """Only the source has it."""
    EXTRA = "extra"
    """Only the target has it."""
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    """It changed in the source while it was compared, and differed each time: it may be late or wrong."""


@dataclass(slots=True)
class DriftedRow:
    kind: Drift
    key: dict[str, Any]
    columns: list[str] = field(default_factory=list)
    """Those that differ."""
    is_repaired: bool = False


@dataclass(slots=True)
class Comparison:
    """What `compare` found."""

    rows: int = 0
    """Rows of the source."""
    late: int = 0
    """Rows that differed at first, and were the same when they were read again."""
    drifted: list[DriftedRow] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether no difference is left."""
        return all(each.is_repaired for each in self.drifted)


def compare(
    source: str,
    target: str,
    *,
    table: str,
    target_table: str | None = None,
    repair: bool = False,
    reads: int = 3,
    pause_s: float = 1.0,
    page_rows: int = _PAGE,
    wait: Callable[[float], object] = time.sleep,
) -> Comparison:
    """Compare the rows of a table with those of its copy, by ranges of keys, and repair the copy if asked to.

    A row counts as drifted if it differs in each of `reads` reads, `pause_s` seconds apart, and its source is the same
    in all of them: pause longer than changes take from one database to the other. A row that changes more often is
    undecided. A repair reads the source and writes the target while nobody else can write the target, so it never
    replaces a newer row by an older one; changes that are on their way are applied after it.
    """
    if isinstance(reads, bool) or not isinstance(reads, int) or reads < 1:
        raise ConfigError(f"reads={reads!r} must be an integer >= 1")
    if not 1 <= page_rows <= _LARGEST_PAGE:
        raise ConfigError(f"page_rows={page_rows!r} must be between 1 and {_LARGEST_PAGE}")
    if pause_s < 0:
        raise ConfigError(f"pause_s={pause_s!r} must not be negative")
    names_in(table)
    if is_mysql(target):
        raise ConfigError("a table of MySQL or MariaDB can only be the source: compare it with its copy elsewhere")
    result = Comparison()
    with _opened(source, table) as ours, _opened(target, target_table or table) as theirs:
        comparer = _Comparer(ours, theirs, reads, pause_s, wait)
        for rows in ours.pages(page_rows):
            result.rows += len(rows)
            _settle(result, comparer, rows, theirs.rows(list(rows)), target if repair else None)
        for rows in theirs.pages(page_rows):
            there = ours.rows(list(rows))
            extra = {key: row for key, row in rows.items() if key not in there}
            _settle(result, comparer, {}, extra, target if repair else None)
    return result


def _settle(result: Comparison, comparer: _Comparer, ours: Rows, theirs: Rows, repaired: str | None) -> None:
    """Decide about the rows of one range, and repair them."""
    drifted, late = comparer.drifted(ours, theirs)
    result.late += late
    if repaired is not None and drifted:
        drifted = comparer.repair(drifted, is_sqlite=is_sqlite(repaired))
    result.drifted += drifted


@contextlib.contextmanager
def _opened(url: str, table: str) -> Iterator[ComparedTable]:
    with contextlib.closing(open_compared(url, table)) as opened:
        yield opened


class _Comparer:
    def __init__(
        self, source: ComparedTable, target: ComparedTable, reads: int, pause_s: float, wait: Callable[[float], object]
    ) -> None:
        self._source = source
        self._target = target
        self._reads = reads
        self._pause_s = pause_s
        self._wait = wait
        if set(source.key) != set(target.key):
            raise SchemaMismatchError(
                f"table {source.name} has the key ({', '.join(source.key)}), and {target.name} "
                f"({', '.join(target.key)}): rows cannot be compared"
            )
        if source.key != target.key:
            raise SchemaMismatchError(f"the keys of {source.name} and {target.name} have another order of columns")

    def drifted(self, ours: Rows, theirs: Rows) -> tuple[list[DriftedRow], int]:
        """The rows that differ for good, and how many were only late."""
        suspects = {key for key in ours.keys() | theirs.keys() if self._difference(ours.get(key), theirs.get(key))}
        first, has_moved = ours, set[Key]()
        count = len(suspects)
        for _ in range(self._reads - 1):
            if not suspects:
                break
            self._wait(self._pause_s)
            # The target comes first: a change that arrives between the two reads makes a difference, and is not missed.
            theirs = self._target.rows(list(suspects))
            ours = self._source.rows(list(suspects))
            has_moved |= {key for key in suspects if ours.get(key) != first.get(key)}
            first = ours
            suspects = {key for key in suspects if self._difference(ours.get(key), theirs.get(key))}
        found = []
        for key in sorted(suspects, key=repr):
            row = self._drift(key, ours.get(key), theirs.get(key))
            if key in has_moved:
                row.kind = Drift.UNDECIDED
            found.append(row)
        return found, count - len(suspects)

    def repair(self, drifted: Sequence[DriftedRow], *, is_sqlite: bool) -> list[DriftedRow]:
        """Make these rows of the target those of the source. Returns what differed when nobody could write."""
        names = names_in(self._target.name)
        writer = TargetTable(".".join(names), is_sqlite=is_sqlite, create=False)
        keys = [tuple(each.key.values()) for each in drifted]
        moved = {key for key, each in zip(keys, drifted, strict=True) if each.kind is Drift.UNDECIDED}
        found = []
        with self._target.locked() as connection:
            theirs = self._target.rows(keys)
            ours = self._source.rows(keys)
            changes = []
            for key in keys:
                mine = ours.get(key)
                if not self._difference(mine, theirs.get(key)):
                    continue
                row = self._drift(key, mine, theirs.get(key))
                if key in moved:
                    row.kind = Drift.UNDECIDED
                row.is_repaired = True
                found.append(row)
                outcome = Outcome.DELETE if mine is None else Outcome.SET
                changes.append(RowChange(outcome, row.key, mine or {}))
            writer.apply(connection, changes)
        return found

    def _drift(self, key: Key, ours: Row | None, theirs: Row | None) -> DriftedRow:
        kind = Drift.EXTRA if ours is None else Drift.MISSING if theirs is None else Drift.DIFFERENT
        columns = self._difference(ours, theirs) if ours is not None and theirs is not None else []
        return DriftedRow(kind, dict(zip(self._source.key, key, strict=True)), columns)

    def _difference(self, ours: Row | None, theirs: Row | None) -> list[str]:
        """The columns that differ. Those that only the target has do not count, nor does null for a missing one."""
        if ours is None or theirs is None:
            return [] if ours is theirs else list(self._source.key)
        return [name for name, value in ours.items() if not same(value, theirs.get(name))]


def same(ours: Any, theirs: Any) -> bool:
    """Whether two JSON values mean the same in two databases: 1 and true, 12.5 and "12.50", an array and its text,
    10:00:00.5 and 10:00:00.500000."""
    if ours == theirs:
        return True
    if ours is None or theirs is None:
        return False
    kinds = (type(ours), type(theirs))
    if kinds == (str, str):
        if ours[:1] in ("{", "[") and theirs[:1] in ("{", "["):
            with contextlib.suppress(ValueError):
                return bool(json.loads(ours) == json.loads(theirs))
        return _MOMENT.fullmatch(ours) is not None and _trimmed(ours) == _trimmed(theirs)
    if str in kinds and (list in kinds or dict in kinds):
        text, other = (ours, theirs) if isinstance(ours, str) else (theirs, ours)
        with contextlib.suppress(ValueError):
            return bool(json.loads(text) == other)
        return False
    if any(kind in (int, float) for kind in kinds) and str in kinds:
        with contextlib.suppress(InvalidOperation):
            return Decimal(str(ours)) == Decimal(str(theirs))
    return False


def _trimmed(text: str) -> str:
    """A time without zeros at the end of its fraction."""
    found = _MOMENT.fullmatch(text)
    if found is None or found[1] is None:
        return text
    return text.replace(found[1], found[1].rstrip("0").rstrip("."))
