"""The letter index: the current state of all letters, as the sum of their events.

An append-only backend (a topic, a file) stores events. The index applies them one by one, so that an update costs only
the new ones. The contents of letters are kept in memory up to a budget; beyond it, the index keeps what filters need,
and where the rest can be read again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from penstock.dead_letters.headers import REDRIVE_GROUP_HEADER, REDRIVE_ID_HEADER
from penstock.dead_letters.merging import merged, no_such_letter, plain_filter, settled, supersedes
from penstock.model import DeadLetter, DeadLetterFilter, LetterState

HELD_BYTES: Final = 64 * 1024 * 1024
"""How much of the contents of letters an index keeps in memory."""

Rank = tuple[int, ...]
"""The position of a letter among the others: that of its first event."""


class EventKind(StrEnum):
    PUT = "put"
    TAKEN = "taken"
    REDRIVEN = "redriven"
    """Settled by its taker: it was sent again."""
    RETURNED = "returned"
    """Settled by its taker: it was not sent."""
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class Event:
    """One change of a letter."""

    kind: EventKind
    id: str
    letter: DeadLetter | None = None
    """The letter that was put."""
    taker: str = ""


@dataclass(slots=True)
class _Entry:
    letter: DeadLetter
    rank: Rank
    source: Any
    """Where its content can be read again, in the backend's own terms."""
    held_bytes: int
    """0: its content is not held."""
    taker: str = ""


class LetterIndex:
    """See the module's docstring. Not thread-safe."""

    def __init__(self, held_bytes: int = HELD_BYTES) -> None:
        self._budget_bytes = held_bytes
        self._held_bytes = 0
        self._entries: dict[str, _Entry] = {}
        self._order: list[tuple[Rank, str]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, event: Event, rank: Rank, source: Any = None, is_whole: bool = True) -> bool:
        """Apply an event and return whether it changed anything. Events of one id must come in order.

        The content of a letter that is put without being whole must be read again from `source`.
        """
        if event.kind is EventKind.PUT:
            assert event.letter is not None, f"the put event of {event.id} contains no letter"
            self._put(event.letter, rank, source, is_whole)
            return True
        if not self.allows(event):
            return False
        entry = self._entries[event.id]
        match event.kind:
            case EventKind.TAKEN:
                entry.letter, entry.taker = replace(entry.letter, state=LetterState.TAKEN), event.taker
            case EventKind.DISCARDED:
                entry.letter, entry.taker = replace(entry.letter, state=LetterState.DISCARDED), ""
            case _:
                entry.letter, entry.taker = settled(entry.letter, event.kind is EventKind.REDRIVEN), ""
        return True

    def allows(self, event: Event) -> bool:
        """Whether this event, which is not a put, would change anything now."""
        entry = self._entries.get(event.id)
        if entry is None:
            return False
        state = entry.letter.state
        if event.kind is EventKind.TAKEN:
            return state in (LetterState.WAITING, LetterState.TAKEN)
        if event.kind is EventKind.DISCARDED:
            return state is not LetterState.DISCARDED
        return self.taken_by(event.id, event.taker)

    def taken_by(self, id: str, taker: str) -> bool:
        entry = self._entries.get(id)
        return entry is not None and entry.letter.state is LetterState.TAKEN and entry.taker == taker

    def find(self, which: DeadLetterFilter, after: str | None = None) -> Iterator[str]:
        """The ids of the matching letters, in order, after the letter `after`."""
        which = plain_filter(which)
        places = self._order
        if which.ids:
            places = sorted((self._entries[id].rank, id) for id in which.ids if id in self._entries)
        start = 0
        if after is not None:
            if after not in self._entries:
                raise no_such_letter(after)
            start = bisect.bisect_right(places, (self._entries[after].rank, after))
        for index in range(start, len(places)):
            id = places[index][1]
            if which.matches(self._entries[id].letter):
                yield id

    def letters(self, ids: Sequence[str], fetch: Callable[[Sequence[Any]], Sequence[DeadLetter]]) -> list[DeadLetter]:
        """These letters with their contents, in this order. `fetch` reads those that are not in memory."""
        entries = [self._entries[id] for id in ids]
        absent = [entry for entry in entries if not entry.held_bytes]
        contents = fetch([entry.source for entry in absent]) if absent else ()
        found = {letter.id: letter for letter in contents}
        return [
            entry.letter
            if entry.held_bytes
            else replace(found[entry.letter.id], state=entry.letter.state, redrives=entry.letter.redrives)
            for entry in entries
        ]

    def in_order(self, ids: Collection[str]) -> list[str]:
        """The known ones of these ids, once each, in the order of their letters."""
        return sorted({id for id in ids if id in self._entries}, key=lambda id: (self._entries[id].rank, id))

    def _put(self, letter: DeadLetter, rank: Rank, source: Any, is_whole: bool) -> None:
        entry = self._entries.get(letter.id)
        if entry is None:
            entry = self._entries[letter.id] = _Entry(letter, rank, source, 0)
            place = (rank, letter.id)
            if self._order and place < self._order[-1]:
                bisect.insort(self._order, place)
            else:
                self._order.append(place)
        else:
            is_newer = supersedes(letter, entry.letter)
            entry.letter, entry.taker = merged(entry.letter, letter), ""
            if not is_newer:
                return
            self._held_bytes -= entry.held_bytes
            entry.source, entry.held_bytes = source, 0
        size_bytes = _size_bytes(letter)
        if is_whole and self._held_bytes + size_bytes <= self._budget_bytes:
            entry.held_bytes = size_bytes
            self._held_bytes += size_bytes
        else:
            entry.letter = _outline(entry.letter)


def _size_bytes(letter: DeadLetter) -> int:
    record = letter.record
    size_bytes = 1000 + len(letter.traceback) + len(letter.error) + len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size_bytes += 100 + len(name) + len(content or b"")
    return size_bytes


def _outline(letter: DeadLetter) -> DeadLetter:
    """The fields that filters use, and the headers that tell which of two letters is newer."""
    headers = tuple(pair for pair in letter.record.headers if pair[0] in (REDRIVE_ID_HEADER, REDRIVE_GROUP_HEADER))
    return replace(letter, traceback="", record=replace(letter.record, key=None, value=None, headers=headers))
