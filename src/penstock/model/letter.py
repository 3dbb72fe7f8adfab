"""Dead letters: records that were given up, with everything needed to see why, and to try again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from penstock.model.record import Record


class LetterState(StrEnum):
    WAITING = "waiting"
    """Nobody has done anything about it."""
    TAKEN = "taken"
    """A redrive has it in hand. Where that redrive died, the next one takes it again."""
    REDRIVEN = "redriven"
    """It was sent again."""
    DISCARDED = "discarded"
    """Somebody decided that it is not needed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that a group gave up, as it was read, and why."""

    id: str
    """The same for the same record of the same group (see `letter_id`): putting it twice keeps one letter."""
    group: str
    record: Record
    """The record with its raw bytes, and where it stood."""
    error: str
    """The class of the error and its text."""
    error_kind: str
    """The name of the error's class, to filter by."""
    traceback: str
    attempts: int
    first_ms: int
    """When it was first tried."""
    last_ms: int
    """When it was given up."""
    handler: str
    handler_version: str
    state: LetterState = LetterState.WAITING
    redrives: int = 0
    """How often it was sent again."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant: those to which everything given applies."""

    ids: frozenset[str] = frozenset()
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    error_kind: str | None = None
    error_contains: str | None = None
    since_ms: int | None = None
    """Given up at this time or later."""
    until_ms: int | None = None
    """Given up before this time."""
    states: frozenset[LetterState] = frozenset({LetterState.WAITING, LetterState.TAKEN})

    def matches(self, letter: DeadLetter) -> bool:
        record = letter.record
        return (
            (not self.ids or letter.id in self.ids)
            and self.group in (None, letter.group)
            and self.topic in (None, record.topic)
            and self.partition in (None, record.partition)
            and self.error_kind in (None, letter.error_kind)
            and (self.error_contains is None or self.error_contains in letter.error)
            and (self.since_ms is None or letter.last_ms >= self.since_ms)
            and (self.until_ms is None or letter.last_ms < self.until_ms)
            and (not self.states or letter.state in self.states)
        )


def letter_id(group: str, topic: str, partition: int, pointer: int) -> str:
    """The id of the dead letter of a record: short, and the same whenever and wherever it is made."""
    text = "\x1f".join((group, topic, str(partition), str(pointer)))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
