"""Which dead letters are meant: where they are kept, and the options by which some of them are chosen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.stream import hush, open_stream, position
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.abc import DeadLetters
    from penstock.model import LetterFilter
    from penstock.streams import Connection

Letters = Annotated[
    str,
    typer.Argument(
        metavar="LETTERS",
        help="Where they are: a topic (orders.dlq), sqlite:PATH, file:PATH, or postgresql://USER@HOST/DATABASE.",
    ),
]
Group = Annotated[str | None, typer.Option("--group", "-g", help="Given up by this group.")]
Topic = Annotated[str | None, typer.Option("--topic", "-t", help="Of records of this topic.")]
Partition = Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Of records of this partition.")]
Kind = Annotated[str | None, typer.Option("--error-kind", metavar="CLASS", help="With this error, such as ValueError.")]
Contains = Annotated[str | None, typer.Option("--contains", metavar="TEXT", help="With this text in the error.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Given up at this time or later: 2026-11-15T08:00, -1h, or milliseconds."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Given up before this time.")]


class State(StrEnum):
    waiting = "waiting"
    taken = "taken"
    redriven = "redriven"
    discarded = "discarded"
    all = "all"


States = Annotated[
    list[State] | None,
    typer.Option("--state", help="In this state; may be repeated. Else those that are waiting, or taken by a redrive."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """The options by which letters are chosen, as they were written."""

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
        """Whether nothing was said about which letters are meant."""
        return self == Choice(states=self.states)

    def filter(self) -> LetterFilter:
        from penstock.model import LetterFilter, LetterState

        if State.all in self.states:
            states = frozenset(LetterState)
        elif self.states:
            states = frozenset(LetterState(state.value) for state in self.states)
        else:
            states = LetterFilter().states
        return LetterFilter(
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
def open_letters(letters: str, url: str) -> Iterator[DeadLetters]:
    """The dead letters, for as long as the block lasts. The stream is asked only when they are in one of its topics."""
    from penstock.consuming.dead_letters.opening import names_a_topic

    if names_a_topic(letters):
        with open_stream(url) as stream, letters_of(letters, stream) as opened:
            yield opened
    else:
        hush()
        with letters_of(letters, None) as opened:
            yield opened


@contextmanager
def letters_of(letters: str, stream: Connection | None) -> Iterator[DeadLetters]:
    """The dead letters, which must exist: who has misspelt their name is not shown an empty list."""
    from penstock.consuming.dead_letters.opening import names_a_topic, open_dead_letters, path_of

    if names_a_topic(letters):
        assert stream is not None
        stream.administration.require(letters)
    path = path_of(letters)
    if path is not None and not path.exists():
        raise ConfigError(f"there are no dead letters at {path}: it does not exist")
    with contextlib.closing(open_dead_letters(letters, stream)) as opened:
        yield opened


def _time_ms(text: str | None, option: str) -> int | None:
    from penstock.model import PositionKind

    if text is None:
        return None
    found = position(text, option)
    if found.kind is not PositionKind.TIME:
        raise typer.BadParameter(
            f"{text!r} is no time: use one such as 2026-11-15T08:00, -1h, or milliseconds since 1970", param_hint=option
        )
    return found.time_ms
