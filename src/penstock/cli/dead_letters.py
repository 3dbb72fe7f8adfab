"""The arguments and options of `penstock dlq` that select letters, and the formats in which it prints them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from penstock.abc import DeadLetters
from penstock.cli.output import time_text
from penstock.cli.record_formats import as_json, printable_bytes
from penstock.cli.stream import open_connection, position, silence_log
from penstock.dead_letters.opening import names_a_topic, open_dead_letters, path_of
from penstock.errors import ConfigError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, PositionKind
from penstock.model.pointer_forms import PointerText, place_text
from penstock.model.text import count_text
from penstock.streams import Connection
from penstock.streams.connecting import pointer_text_at

COLUMNS: Final = ("id", "state", "group", "record", "given up", "attempts", "redrives", "error")
NUMBERS: Final = ("attempts", "redrives")
_ERROR_LENGTH: Final = 100


def as_row(letter: DeadLetter, pointer_text: PointerText) -> tuple[object, ...]:
    record = letter.record
    return (
        letter.id,
        letter.state,
        letter.group,
        f"{record.topic}-{record.partition}:{pointer_text(record.offset)}",
        time_text(letter.last_ms),
        letter.attempts,
        letter.redrives,
        _short(letter.error),
    )


def as_text(letter: DeadLetter, pointer_text: PointerText) -> str:
    """Everything about a letter, for people, with control characters escaped."""
    record = letter.record
    lines = [
        f"letter     {letter.id}",
        f"state      {letter.state}, redriven {count_text(letter.redrives, 'time')}",
        f"group      {_plain(letter.group)}",
        f"handler    {_plain(letter.handler)} {_plain(letter.handler_version)}".rstrip(),
        f"attempts   {letter.attempts}, from {time_text(letter.first_ms)} to {time_text(letter.last_ms)}",
        "",
        f"record     {place_text(record, pointer_text)}",
        f"timestamp  {time_text(record.timestamp_ms)}",
        f"key        {_content(record.key)}",
        f"value      {_content(record.value)}",
    ]
    lines += [f"header     {_plain(name)}={_content(content)}" for name, content in record.headers]
    lines += ["", f"error      {_plain(letter.error)}"]
    if letter.traceback:
        lines += ["", *map(_plain, letter.traceback.rstrip("\n").split("\n"))]
    return "\n".join(lines)


def as_object(letter: DeadLetter, pointer_text: PointerText, *, with_traceback: bool) -> dict[str, Any]:
    """A letter as JSON: the record as in `penstock consume --format json`, and the facts about its failure."""
    told: dict[str, Any] = {
        "id": letter.id,
        "state": letter.state.value,
        "group": letter.group,
        "error_kind": letter.error_kind,
        "error": letter.error,
        "attempts": letter.attempts,
        "redrives": letter.redrives,
        "first_ms": letter.first_ms,
        "last_ms": letter.last_ms,
        "handler": letter.handler,
        "handler_version": letter.handler_version,
        "record": msgspec.json.decode(as_json(letter.record, pointer_text)),
    }
    if with_traceback:
        told["traceback"] = letter.traceback
    return told


def _short(text: str) -> str:
    line = _plain(text.partition("\n")[0])
    return line if len(line) <= _ERROR_LENGTH else line[: _ERROR_LENGTH - 1] + "…"


def _plain(text: str) -> str:
    return printable_bytes(text.encode("utf-8", "backslashreplace"))


def _content(content: bytes | None) -> str:
    return "(none)" if content is None else printable_bytes(content)


Letters = Annotated[
    str,
    typer.Argument(
        metavar="LETTERS",
        help="The dead letters: a topic (orders.dlq), sqlite:PATH, file:PATH, or postgresql://USER@HOST/DATABASE.",
    ),
]
Group = Annotated[str | None, typer.Option("--group", "-g", help="From this group.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="From this topic.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="From this partition.")]
Kind = Annotated[str | None, typer.Option("--error-kind", metavar="CLASS", help="With this error, such as ValueError.")]
Contains = Annotated[str | None, typer.Option("--contains", metavar="TEXT", help="With this text in the error.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Failed at this time or later: 2026-11-15T08:00, -1h, or milliseconds."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Failed before this time.")]


class State(StrEnum):
    waiting = "waiting"
    taken = "taken"
    redriven = "redriven"
    discarded = "discarded"
    all = "all"


States = Annotated[
    list[State] | None,
    typer.Option("--state", help="In this state; may be repeated. Default: waiting, or taken by a redrive."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that select letters, as written."""

    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    error_kind: str | None = None
    contains: str | None = None
    since: str | None = None
    until: str | None = None
    states: tuple[State, ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        return self == Choice(states=self.states)

    def filter(self) -> DeadLetterFilter:
        if State.all in self.states:
            states = frozenset(LetterState)
        elif self.states:
            states = frozenset(LetterState(state.value) for state in self.states)
        else:
            states = DeadLetterFilter().states
        return DeadLetterFilter(
            ids=frozenset(self.ids),
            group=self.group,
            topic=self.topic,
            partition=self.partition,
            error_kind=self.error_kind,
            error_contains=self.contains,
            since_ms=_time_ms(self.since, "--since"),
            until_ms=_time_ms(self.until, "--until"),
            states=states,
        )


@contextmanager
def open_letters(letters: str, url: str) -> Iterator[tuple[DeadLetters, PointerText]]:
    """The dead letters, while the block lasts, and how the pointers of their records are written. The stream is used
    only when they are in one of its topics."""
    if names_a_topic(letters):
        with open_connection(url) as stream, letters_of(letters, stream) as opened:
            yield opened, stream.pointer_text
    else:
        silence_log()
        with letters_of(letters, None) as opened:
            yield opened, pointer_text_at(url)


@contextmanager
def letters_of(letters: str, stream: Connection | None) -> Iterator[DeadLetters]:
    """The dead letters, which must exist: a misspelt name must not show an empty list."""
    if names_a_topic(letters):
        assert stream is not None
        stream.admin().require(letters)
    path = path_of(letters)
    if path is not None and not path.exists():
        raise ConfigError(f"there are no dead letters at {path}: it does not exist")
    with contextlib.closing(open_dead_letters(letters, stream)) as opened:
        yield opened


def _time_ms(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    found = position(text, option)
    if found.kind is not PositionKind.TIME:
        raise typer.BadParameter(
            f"{text!r} is not a time: use 2026-11-15T08:00, -1h, or milliseconds since 1970", param_hint=option
        )
    return found.time_ms
