"""What becomes of a letter when it is put, and when it is put again: one set of rules for all storages."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.consuming.dead_letters.headers import redrive_of
from penstock.model import DeadLetter, LetterFilter, LetterState

ERROR_LENGTH: Final = 8 * 1024
"""How many characters of an error are kept. Some errors carry the whole value in their text."""
TRACEBACK_LENGTH: Final = 32 * 1024
"""How many characters of a traceback are kept: its beginning, and its end, which tells most."""
NAME_LENGTH: Final = 1024
_TRACEBACK_BEGINNING: Final = 8 * 1024


def admitted(letter: DeadLetter) -> DeadLetter:
    """A letter as it is stored when it is put and none of its id is there: waiting, its texts bounded and writable.

    The record is never touched. How often it was redriven, its headers may know better than the letter.
    """
    return replace(
        letter,
        error=plain(letter.error, ERROR_LENGTH),
        error_kind=plain(letter.error_kind, NAME_LENGTH),
        traceback=_cut_traceback(plain(letter.traceback)),
        handler=plain(letter.handler, NAME_LENGTH),
        handler_version=plain(letter.handler_version, NAME_LENGTH),
        state=LetterState.WAITING,
        redrives=max(letter.redrives, own_redrive(letter)),
    )


def supersedes(put: DeadLetter, stored: DeadLetter) -> bool:
    """Whether what is put is at least as new as what is stored: the failure of a later redrive, or of a later time.

    The redrive comes first, as clocks of machines differ, but a record cannot fail before it was redriven.
    """
    return _age(put) >= _age(stored)


def merged(stored: DeadLetter, put: DeadLetter) -> DeadLetter:
    """What is kept of two letters of one id; `put` has been admitted.

    It is waiting again, whoever has it in hand: that one's `settle` has no effect any more. Only what was discarded
    stays so, unless the record has failed again since.
    """
    is_known = stored.state is LetterState.DISCARDED and supersedes(stored, put)
    return replace(
        put if supersedes(put, stored) else stored,
        state=LetterState.DISCARDED if is_known else LetterState.WAITING,
        redrives=max(stored.redrives, put.redrives),
    )


def settled(letter: DeadLetter, redriven: bool) -> DeadLetter:
    """A letter that was taken, after what its taker did with it."""
    if redriven:
        return replace(letter, state=LetterState.REDRIVEN, redrives=letter.redrives + 1)
    return replace(letter, state=LetterState.WAITING)


def plain(text: str, length: int | None = None) -> str:
    """Text that every storage can keep: no NUL, which PostgreSQL refuses, and no half of a surrogate pair.

    Both are written as escapes. At most `length` characters, the last of which then say that some are missing.
    """
    if length is not None and len(text) > length:
        text = text[: length - 2] + " …"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def plain_filter(which: LetterFilter) -> LetterFilter:
    """A filter for letters as they are stored."""
    if which.error_contains is None and which.error_kind is None:
        return which
    return replace(
        which,
        error_contains=None if which.error_contains is None else plain(which.error_contains),
        error_kind=None if which.error_kind is None else plain(which.error_kind, NAME_LENGTH),
    )


def _cut_traceback(text: str) -> str:
    if len(text) <= TRACEBACK_LENGTH:
        return text
    note = "\n  … (cut here) …\n"
    end_length = TRACEBACK_LENGTH - _TRACEBACK_BEGINNING - len(note)
    return text[:_TRACEBACK_BEGINNING] + note + text[-end_length:]


def _age(letter: DeadLetter) -> tuple[int, int]:
    return own_redrive(letter), letter.last_ms


def own_redrive(letter: DeadLetter) -> int:
    """Which redrive of the letter its record is: 0 for the record that the producer sent."""
    redrive = redrive_of(letter.record)
    return redrive.number if redrive is not None and redrive.letter_id == letter.id else 0
