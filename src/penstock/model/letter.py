"""Dead letters: records that a group gave up, with the reason and everything needed to try again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.model.record import Headers, Record


class LetterState(StrEnum):
    WAITING = "waiting"
    """Nothing was done about it yet."""
    TAKEN = "taken"
    """A redrive is sending it. If that redrive dies, the next one takes it again."""
    REDRIVEN = "redriven"
    """It was sent again."""
    DISCARDED = "discarded"
    """A user decided that it is not needed."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that a group gave up, as it was read, and the reason."""

    id: str
    """The same for the same record and group (see `letter_id`), so that writing it twice keeps one letter."""
    group: str
    record: Record
    """The record with its raw bytes and its topic, partition and offset."""
    error: str
    """The class and text of the error."""
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
class DeadLetterFilter:
    """Dead letters that match every given field."""

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


_OF_QUERY: Final = "query "


def query_row(query: str, batch_id: int, value: bytes, headers: Headers) -> Record:
    """A row of a pipeline's query as the record of a dead letter. Its topic is not a valid name."""
    return Record(_OF_QUERY + query, 0, batch_id, None, value, headers)


def is_of_query(topic: str) -> bool:
    """Whether a dead letter with this topic is a row of a query (see `query_row`)."""
    return topic.startswith(_OF_QUERY)


def letter_id(group: str, topic: str, partition: int, pointer: int) -> str:
    """The id of a record's dead letter: short, and always the same for the same record and group."""
    text = "\x1f".join((group, topic, str(partition), str(pointer)))
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
