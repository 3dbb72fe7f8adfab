"""`penstock dlq`: what was given up and why, and sending it again."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.default_command import ListByDefault
from penstock.cli.letter_choice import (
    Choice,
    Contains,
    Group,
    Kind,
    Letters,
    Partition,
    Since,
    State,
    States,
    Topic,
    Until,
    letters_of,
    open_letters,
)
from penstock.cli.output import count_text, print_json, print_table, say
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples, open_stream
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.abc import DeadLetters
    from penstock.model import DeadLetter, LetterFilter

app = typer.Typer(cls=ListByDefault, rich_markup_mode=None, help="List, show, count, redrive and discard dead letters.")

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Only these letters.")]

_PAGE: Final = 500
_SUFFIX: Final = ".dlq"


@app.command(
    "list",
    epilog=examples(
        "penstock dlq",
        "penstock dlq list orders.dlq",
        "penstock dlq list orders.dlq --group billing --error-kind TimeoutError --since -1h",
        "penstock dlq list sqlite:./dead-letters.db --state all --json",
    ),
)
def list_letters(
    letters: Annotated[
        str | None,
        typer.Argument(
            metavar="[LETTERS]",
            help="Where they are: a topic (orders.dlq), sqlite:PATH, file:PATH, or postgresql://USER@HOST/DATABASE. "
            f"Without it, the stream's topics whose names end in {_SUFFIX} are listed.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    error_kind: Kind = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    state: States = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="List so many at most.")] = 100,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Go on behind this letter.")] = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters in the order in which they were put, or where there are any."""
    from penstock.cli.letter_formats import COLUMNS, NUMBERS, as_object, as_row

    choice = Choice(group, topic, partition, error_kind, contains, since, until, tuple(state or ()))
    if letters is None:
        if not choice.is_everything or after is not None:
            raise typer.BadParameter("say in which letters to look, such as orders.dlq", param_hint="LETTERS")
        _list_topics(url, as_json)
        return
    which = choice.filter()
    with open_letters(letters, url) as opened:
        found = opened.browse(which, limit, after)
        more = len(found) == limit and bool(opened.browse(which, 1, found[-1].id))
        others = 0 if found or not choice.is_everything else opened.count(Choice(states=_every_state()).filter())
    if as_json:
        print_json([as_object(letter, with_traceback=False) for letter in found])
    elif found:
        print_table(COLUMNS, map(as_row, found), numbers=NUMBERS)
    elif others:
        say(f"No letter is waiting; {count_text(others, 'letter')} were dealt with. --state all shows them.")
    else:
        say("There are no such letters.")
    if more and not as_json:
        say(f"There are more. Go on with: --after {found[-1].id}")


@app.command(
    "show",
    epilog=examples(
        "penstock dlq show orders.dlq 25c163e5b9cff21281f42dc3",
        "penstock dlq show orders.dlq 25c163e5b9cff21281f42dc3 --json",
    ),
)
def show(
    letters: Letters,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The letters' ids.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show letters: the record, the error, and its traceback."""
    from penstock.cli.letter_formats import as_object, as_text

    with open_letters(letters, url) as opened:
        found = _those(opened, letters, ids)
    if as_json:
        print_json([as_object(letter, with_traceback=True) for letter in found])
    else:
        typer.echo("\n\n".join(map(as_text, found)))


class By(StrEnum):
    STATE = "state"
    GROUP = "group"
    TOPIC = "topic"
    PARTITION = "partition"
    ERROR_KIND = "error-kind"
    HANDLER = "handler"


@app.command(
    "count",
    epilog=examples(
        "penstock dlq count orders.dlq",
        "penstock dlq count orders.dlq --by error-kind --since -1d",
        "penstock dlq count sqlite:./dead-letters.db --state all --by state",
    ),
)
def count(
    letters: Letters,
    url: Url = DEFAULT_URL,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    error_kind: Kind = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    state: States = None,
    by: Annotated[By | None, typer.Option(help="Count them for each of these, the most frequent first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count dead letters."""
    which = Choice(group, topic, partition, error_kind, contains, since, until, tuple(state or ())).filter()
    with open_letters(letters, url) as opened:
        if by is None:
            total = opened.count(which)
            counts: Counter[str] = Counter()
        else:
            counts = Counter(_value(letter, by) for letter in _every(opened, which))
            total = counts.total()
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if as_json:
        print_json({"count": total} if by is None else {"count": total, "by": by.value, "counts": dict(ordered)})
    elif by is None:
        typer.echo(total)
    else:
        print_table([by.value, "letters"], ordered, numbers=["letters"])


@app.command(
    "redrive",
    epilog=examples(
        "penstock dlq redrive orders.dlq --dry-run",
        "penstock dlq redrive orders.dlq --group billing --error-kind TimeoutError --rate 50",
        "penstock dlq redrive orders.dlq 25c163e5b9cff21281f42dc3",
        "penstock dlq redrive sqlite:./dead-letters.db --to orders.retry --limit 100",
    ),
)
def redrive(
    letters: Letters,
    ids: Ids = None,
    url: Url = DEFAULT_URL,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    error_kind: Kind = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    to: Annotated[str | None, typer.Option(metavar="TOPIC", help="Send them to this topic, not to their own.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most so many letters a second.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most so many letters.")] = None,
    new_timestamps: Annotated[
        bool,
        typer.Option(
            "--new-timestamps",
            help="Give records the present time. Use it when they are older than their topic keeps records.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send records again that were given up, as they were, for their group to handle.

    A redrive that is interrupted, or killed, is finished by running it again: what was sent twice is handled once.
    """
    from penstock.cli.redriving import dry_report, run_redrive

    choice = Choice(group, topic, partition, error_kind, contains, since, until, ids=tuple(ids or ()))
    which = choice.filter()
    with open_stream(url) as stream, letters_of(letters, stream) as opened:
        if to is not None:
            stream.administration.require(to)
        for letter in _those(opened, letters, ids or ()):
            if letter.state not in which.states:
                raise ConfigError(f"letter {letter.id} is {letter.state}: only those that wait can be redriven")
        if dry_run:
            dry_report(opened, which, to, limit, as_json)
            return
        code = run_redrive(opened, stream, which, to, rate, limit, new_timestamps, as_json)
    if code:
        raise typer.Exit(code)


@app.command(
    "discard",
    epilog=examples(
        "penstock dlq discard orders.dlq 25c163e5b9cff21281f42dc3",
        "penstock dlq discard orders.dlq --error-kind Reject --until -30d --yes",
    ),
)
def discard(
    letters: Letters,
    ids: Ids = None,
    url: Url = DEFAULT_URL,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    error_kind: Kind = None,
    contains: Contains = None,
    since: Since = None,
    until: Until = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are waiting.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark letters as not needed. They stay where they are, and are not redriven; --state discarded lists them."""
    choice = Choice(group, topic, partition, error_kind, contains, since, until, ids=tuple(ids or ()))
    if choice.is_everything != everything:
        raise typer.BadParameter("say which letters: their ids, a filter, or --all of them", param_hint="ID")
    which = choice.filter()
    with open_letters(letters, url) as opened:
        _those(opened, letters, ids or ())
        found = [letter.id for letter in _every(opened, which)]
        if found and not yes:
            _ask(f"Discard {count_text(len(found), 'letter')}?")
        discarded = sum(opened.discard(found[start : start + _PAGE]) for start in range(0, len(found), _PAGE))
    if as_json:
        print_json({"discarded": discarded})
    else:
        say(f"Discarded {count_text(discarded, 'letter')}.")


def _list_topics(url: str, as_json: bool) -> None:
    """Where in the stream there are dead letters, and how many in each state."""
    states = [state for state in State if state is not State.all]
    rows = []
    with open_stream(url) as stream:
        for topic in stream.topics():
            if topic.endswith(_SUFFIX):
                with letters_of(topic, stream) as opened:
                    counts = {state.value: opened.count(Choice(states=(state,)).filter()) for state in states}
                rows.append({"letters": topic, **counts})
    if as_json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows], numbers=list(rows[0])[1:])
    else:
        say(f"No topic ends in {_SUFFIX}. Name the letters, if they are elsewhere: penstock dlq list sqlite:PATH")


def _those(opened: DeadLetters, letters: str, ids: Sequence[str]) -> list[DeadLetter]:
    """The letters of these ids, in any state, in the order asked for. ConfigError names the first that is not there."""
    if not ids:
        return []
    which = Choice(states=_every_state(), ids=tuple(ids)).filter()
    found = {letter.id: letter for letter in opened.browse(which, len(ids))}
    for id in ids:
        if id not in found:
            raise ConfigError(f"there is no letter {id!r} in {letters}; to see them: penstock dlq list {letters}")
    return [found[id] for id in ids]


def _every(opened: DeadLetters, which: LetterFilter) -> Iterator[DeadLetter]:
    last: str | None = None
    while page := opened.browse(which, _PAGE, last):
        yield from page
        last = page[-1].id


def _value(letter: DeadLetter, by: By) -> str:
    match by:
        case By.STATE:
            return letter.state.value
        case By.GROUP:
            return letter.group
        case By.TOPIC:
            return letter.record.topic
        case By.PARTITION:
            return f"{letter.record.topic}-{letter.record.partition}"
        case By.ERROR_KIND:
            return letter.error_kind
        case By.HANDLER:
            return f"{letter.handler} {letter.handler_version}".rstrip()


def _every_state() -> tuple[State, ...]:
    return (State.all,)


def _ask(question: str) -> None:
    """Go on only when a person says yes."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("nobody can be asked here: add --yes to go on without asking", param_hint="--yes")
    if not typer.confirm(question, err=True):
        say("Nothing was discarded.")
        raise typer.Exit(1)
