"""Dead letters that break a promise each, for the suite to find them out."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.dead_letters.merging import admitted, merged
from penstock.dead_letters.rows import COLUMNS, NAMES, TABLE, row_of
from penstock.dead_letters.sqlite import SqliteDeadLetters
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, Record


class Sound(SqliteDeadLetters):
    """What the others are made from."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "letters.db")

    def stored(self, id: str) -> DeadLetter | None:
        found = super().browse(DeadLetterFilter(ids=frozenset({id}), states=frozenset()))
        return found[0] if found else None

    def change(self, statement: str, *parameters: Any) -> int:
        with self._database.transaction() as cursor:
            return cursor.execute(statement, parameters).rowcount


class KeepsTheOlder(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put([letter for letter in letters if self.stored(letter.id) is None])


class KeepsTheLastPut(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put(letters)
        for letter in letters:
            self.change(
                f"UPDATE {TABLE} SET error = ?, attempts = ? WHERE id = ?", letter.error, letter.attempts, letter.id
            )


class MovesWhatIsPutAgain(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            stored = self.stored(letter.id)
            self.change(f"DELETE FROM {TABLE} WHERE id = ?", letter.id)
            super().put([letter if stored is None else merged(stored, letter)])


class KeepsTheStateOfWhatIsPutAgain(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            stored = self.stored(letter.id)
            takers = self._database.read(f"SELECT taker FROM {TABLE} WHERE id = ?", (letter.id,))
            super().put([letter])
            if stored is not None:
                change = f"UPDATE {TABLE} SET state = ?, taker = ? WHERE id = ?"
                self.change(change, stored.state.value, takers[0][0], letter.id)


class ForgetsTheRedrives(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put(letters)
        for letter in letters:
            self.change(f"UPDATE {TABLE} SET redrives = ? WHERE id = ?", letter.redrives, letter.id)


class RevivesTheDiscarded(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put(letters)
        for letter in letters:
            self.change(f"UPDATE {TABLE} SET state = 'waiting' WHERE id = ?", letter.id)


class PutsInTheStateGiven(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put(letters)
        for letter in letters:
            self.change(f"UPDATE {TABLE} SET state = ? WHERE id = ?", letter.state.value, letter.id)


class ChangesRecords(Sound):
    """Stores what `spoil` makes of a record."""

    @staticmethod
    def spoil(record: Record) -> Record:
        raise NotImplementedError

    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put([replace(letter, record=self.spoil(letter.record)) for letter in letters])


class TakesNoneForEmpty(ChangesRecords):
    @staticmethod
    def spoil(record: Record) -> Record:
        return replace(record, value=record.value or b"")


class TakesKeysForText(ChangesRecords):
    @staticmethod
    def spoil(record: Record) -> Record:
        return replace(record, key=None if record.key is None else record.key.decode(errors="replace").encode())


class TakesHeadersForADictionary(ChangesRecords):
    @staticmethod
    def spoil(record: Record) -> Record:
        return replace(record, headers=tuple(dict(record.headers).items()))


class CutsLargeValues(ChangesRecords):
    @staticmethod
    def spoil(record: Record) -> Record:
        return replace(record, value=None if record.value is None else record.value[:1_000_000])


class CutsTheEndOfTracebacks(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put([replace(letter, traceback=letter.traceback[:30_000]) for letter in letters])


class RefusesOddTexts(Sound):
    def put(self, letters: Sequence[DeadLetter]) -> None:
        for letter in letters:
            assert "\x00" not in letter.error, "a NUL cannot be stored"
        super().put(letters)


class BeginsAnewAfterAnUnknownLetter(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        known = after is not None and self.stored(after) is not None
        return super().browse(which, limit, after if known else None)


class LooksForTheLastSeenAmongTheMatching(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        found = list(super().browse(which, 1_000_000))
        ids = [letter.id for letter in found]
        return found[ids.index(after) + 1 :][:limit] if after in ids else super().browse(which, limit)


class OrdersByTime(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        return sorted(super().browse(which, limit, after), key=lambda letter: letter.last_ms)


class IgnoresTheLimit(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        return super().browse(which, limit + 1, after)


class IgnoresCase(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        wanted = (which.error_contains or "").lower()
        found = super().browse(replace(which, error_contains=None), 1_000_000, after)
        return [letter for letter in found if wanted in letter.error.lower()][:limit]


class IncludesTheEndOfATime(Sound):
    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        until_ms = None if which.until_ms is None else which.until_ms + 1
        return super().browse(replace(which, until_ms=until_ms), limit, after)


class CountsTheWaitingOnly(Sound):
    def count(self, which: DeadLetterFilter) -> int:
        return super().count(replace(which, states=frozenset({LetterState.WAITING})))


class TakesForShow(Sound):
    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        return self.browse(DeadLetterFilter(ids=frozenset(ids) or frozenset({""})), 1_000_000)


class TakesTheRedriven(Sound):
    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        for id in ids:
            self.change(f"UPDATE {TABLE} SET state = 'waiting' WHERE id = ? AND state = 'redriven'", id)
        return super().take(ids, taker)


class TakesTheDiscarded(Sound):
    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        for id in ids:
            self.change(f"UPDATE {TABLE} SET state = 'waiting' WHERE id = ? AND state = 'discarded'", id)
        return super().take(ids, taker)


class LeavesWhatIsTaken(Sound):
    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        free = [letter.id for letter in map(self.stored, ids) if letter and letter.state is LetterState.WAITING]
        return super().take(free, taker)


class TakesInAnyOrder(Sound):
    def take(self, ids: Collection[str], taker: str) -> Sequence[DeadLetter]:
        return list(reversed(super().take(ids, taker)))


class SettlesForAnybody(Sound):
    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        for id in ids:
            self.change(f"UPDATE {TABLE} SET taker = ? WHERE id = ? AND state = 'taken'", taker, id)
        super().settle(ids, taker, redriven)


class SettlesWhatNobodyTook(Sound):
    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        for id in ids:
            self.change(f"UPDATE {TABLE} SET taker = ?, state = 'taken' WHERE id = ? AND state = 'waiting'", taker, id)
        super().settle(ids, taker, redriven)


class CountsNoRedrives(Sound):
    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        super().settle(ids, taker, redriven)
        for id in ids:
            self.change(f"UPDATE {TABLE} SET redrives = 0 WHERE id = ?", id)


class CountsAllThatAreDiscarded(Sound):
    def discard(self, ids: Collection[str]) -> int:
        super().discard(ids)
        return len(ids)


class RemovesTheDiscarded(Sound):
    def discard(self, ids: Collection[str]) -> int:
        return sum(self.change(f"DELETE FROM {TABLE} WHERE id = ?", id) for id in ids)


class KeepsThemInMemoryForAWhile(Sound):
    """Writes letters when it is looked at, or closed: quick, and gone when the process is killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._held: list[DeadLetter] = []

    def put(self, letters: Sequence[DeadLetter]) -> None:
        self._held += letters

    def browse(self, which: DeadLetterFilter, limit: int = 100, after: str | None = None) -> Sequence[DeadLetter]:
        held, self._held = self._held, []
        super().put(held)
        return super().browse(which, limit, after)


class SettlesInMemory(Sound):
    """Writes down what happened when it is closed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._late: list[tuple[list[str], str, bool]] = []

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        self._late.append((list(ids), taker, redriven))

    def close(self) -> None:
        late, self._late = self._late, []
        for ids, taker, redriven in late:
            super().settle(ids, taker, redriven)
        super().close()


class PutsInTwoSteps(Sound):
    """Stores the value in a second transaction: a kill in between leaves a letter without it."""

    def put(self, letters: Sequence[DeadLetter]) -> None:
        super().put([replace(letter, record=replace(letter.record, value=None)) for letter in letters])
        threading.Event().wait(0.2)
        for letter in letters:
            self.change(f"UPDATE {TABLE} SET record_value = ? WHERE id = ?", letter.record.value, letter.id)


class MergesOutsideTheDatabase(Sound):
    """Reads letters and writes them in two transactions: what another process has put in between is lost."""

    def put(self, letters: Sequence[DeadLetter]) -> None:
        stored = {letter.id: self.stored(letter.id) for letter in letters}
        threading.Event().wait(0.05)
        for letter in map(admitted, letters):
            before = stored[letter.id]
            newest = letter if before is None else merged(before, letter)
            marks, changes = ", ".join("?" * len(COLUMNS)), ", ".join(f"{name} = excluded.{name}" for name in COLUMNS)
            write = f"INSERT INTO {TABLE} ({NAMES}) VALUES ({marks}) ON CONFLICT (id) DO UPDATE SET {changes}"
            self.change(write, *row_of(newest))


class ReadsThenWrites(Sound):
    """Adds up redrives outside of the database, whoever has taken the letters."""

    def settle(self, ids: Collection[str], taker: str, redriven: bool) -> None:
        state = LetterState.REDRIVEN if redriven else LetterState.WAITING
        with self._database.transaction() as cursor:
            for letter in filter(None, map(self.stored, ids)):
                redrives = letter.redrives + int(redriven)
                change = f"UPDATE {TABLE} SET state = ?, redrives = ? WHERE id = ?"
                cursor.execute(change, (state.value, redrives, letter.id))


class MindsASecondClose(Sound):
    was_closed = False

    def close(self) -> None:
        if self.was_closed:
            raise sqlite3.ProgrammingError("closed already")
        self.was_closed = True
        super().close()
