"""What happens to a letter when it is put, and put again: the same rules for all backends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.dead_letters.headers import redrive_of
from penstock.errors import ConfigError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState

ERROR_LENGTH: Final = 8 * 1024
"""How many characters of an error are kept. Some errors contain the whole value."""
TRACEBACK_LENGTH: Final = 32 * 1024
"""How many characters of a traceback are kept: its beginning, and its end, which is the most useful part."""
NAME_LENGTH: Final = 1024
_TRACEBACK_BEGINNING: Final = 8 * 1024

FAILURE: Final = (
    "error", "error_kind", "traceback", "attempts", "first_ms", "last_ms", "handler", "handler_version", "redrives"
)  # fmt: skip
"""The fields of a letter that every backend stores by their names, besides its id, group, record and state."""


def failure_of(letter: DeadLetter) -> dict[str, Any]:
    return {name: getattr(letter, name) for name in FAILURE}


def no_such_letter(id: str) -> ConfigError:
    return ConfigError(f"there is no dead letter {id!r} to continue after: start without it")


def admitted(letter: DeadLetter) -> DeadLetter:
    """A new letter as it is stored: waiting, with its texts bounded and storable.

    The record is never changed. Its headers may know better than the letter how often it was redriven.
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
    """Whether the put letter is at least as new as the stored one: from a later redrive, or a later time.

    The redrive decides first, because clocks differ, but a record cannot fail before it was redriven.
    """
    return _age(put) >= _age(stored)


def merged(stored: DeadLetter, put: DeadLetter) -> DeadLetter:
    """Merge two letters of one id; `put` has been admitted.

    The letter is waiting again, even if it is taken: its taker's `settle` has no effect any more. A discarded letter
    stays discarded unless the record has failed again since.
    """
    is_known = stored.state is LetterState.DISCARDED and supersedes(stored, put)
    return replace(
        put if supersedes(put, stored) else stored,
        state=LetterState.DISCARDED if is_known else LetterState.WAITING,
        redrives=max(stored.redrives, put.redrives),
    )


def settled(letter: DeadLetter, redriven: bool) -> DeadLetter:
    """A taken letter after its taker settled it."""
    if redriven:
        return replace(letter, state=LetterState.REDRIVEN, redrives=letter.redrives + 1)
    return replace(letter, state=LetterState.WAITING)


def plain(text: str, length: int | None = None) -> str:
    """Text that every backend can store: without NUL, which PostgreSQL refuses, and without lone surrogates.

    Both are written as escapes. At most `length` characters, the last of which then say that some are missing.
    """
    if length is not None and len(text) > length:
        text = text[: length - 2] + " …"
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def plain_filter(which: DeadLetterFilter) -> DeadLetterFilter:
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
    """The number of the redrive that sent this letter's record; 0 for the record that the producer sent."""
    redrive = redrive_of(letter.record)
    return redrive.number if redrive is not None and redrive.letter_id == letter.id else 0
