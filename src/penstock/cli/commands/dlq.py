"""`penstock dlq`: which records failed and why, and redriving them."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.abc import DeadLetters, Queue
from penstock.cli.dead_letters import (
    COLUMNS,
    NUMBERS,
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
    as_object,
    as_row,
    as_text,
    letters_of,
    open_letters,
)
from penstock.cli.options import DEFAULT_URL, AsJson, ListByDefault, Url, examples
from penstock.cli.output import confirm, print_json, report, say
from penstock.cli.stream import open_connection, silence_log
from penstock.cli.tables import print_table
from penstock.dead_letters import RedriveReport, redriving
from penstock.dead_letters.opening import names_a_topic
from penstock.errors import ConfigError
from penstock.model import DeadLetter, DeadLetterFilter
from penstock.model.clock import SystemClock
from penstock.model.text import count_text
from penstock.queues import open_queue
from penstock.queues.opening import as_queue
from penstock.streams import Connection
from penstock.streams.schemes import scheme_of
from penstock.streams.url import without_password


def dry_report(opened: DeadLetters, which: DeadLetterFilter, to: str | None, limit: int | None, as_json: bool) -> None:
    matching = opened.count(which)
    wanted = matching if limit is None else min(matching, limit)
    where = "their own topics" if to is None else to
    text = f"{count_text(wanted, 'letter')} of {matching:,} would be redriven to {where}. Nothing was sent."
    report({"dry_run": True, "matching": matching, "would_redrive": wanted, "to": to}, text, as_json=as_json)


def run_redrive(
    opened: DeadLetters,
    target: Connection | Queue,
    which: DeadLetterFilter,
    to: str | None,
    rate: float | None,
    limit: int | None,
    new_timestamps: bool,
    as_json: bool,
) -> int:
    with _progress(opened, which, limit) as show:
        report = redriving.redrive(
            opened,
            target,
            which,
            clock=SystemClock(),
            to=to,
            rate_per_s=rate,
            limit=limit,
            timestamps="now" if new_timestamps else "original",
            on_progress=show,
        )
    if as_json:
        failures = [{"id": id, "error": error} for id, error in report.failures]
        print_json({**asdict(report), "failures": failures})
    else:
        _tell(report)
    if report.interrupted:
        return 128 + signal.SIGINT
    return 1 if report.failed else 0


def _tell(report: RedriveReport) -> None:
    for id, error in report.failures[:10]:
        say(f"{id}: {error}")
    say(f"Redrove {count_text(report.redriven, 'letter')}.")
    if report.failed:
        say(f"{count_text(report.failed, 'letter')} could not be sent, and wait again.")
    if report.gone:
        say(f"{count_text(report.gone, 'letter')} were settled by others meanwhile.")
    if report.gave_up:
        say("Every send failed, so it stopped: check that the stream or queue accepts records, and run it again.")
    if report.interrupted:
        say("It was interrupted: run it again to continue.")


@contextmanager
def _progress(
    opened: DeadLetters, which: DeadLetterFilter, limit: int | None
) -> Iterator[Callable[[RedriveReport], None] | None]:
    """A progress bar, on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    total = opened.count(which)
    with Progress(
        TextColumn("redriving"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("redriving", total=total if limit is None else min(total, limit))

        def show(report: RedriveReport) -> None:
            bar.update(task, completed=report.redriven)

        yield show


app = typer.Typer(
    name="dlq", cls=ListByDefault, rich_markup_mode=None, help="List, show, count, redrive and discard dead letters."
)

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
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="List at most this many.")] = 100,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Continue after this letter.")] = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters in the order in which they were stored, or the topics that have some."""
    choice = Choice(group, topic, partition, error_kind, contains, since, until, tuple(state or ()))
    if letters is None:
        if not choice.is_everything or after is not None:
            raise typer.BadParameter("name the dead letters, such as orders.dlq", param_hint="LETTERS")
        _list_topics(url, as_json)
        return
    which = choice.filter()
    with open_letters(letters, url) as (opened, pointer_text):
        found = opened.browse(which, limit, after)
        more = len(found) == limit and bool(opened.browse(which, 1, found[-1].id))
        others = 0 if found or not choice.is_everything else opened.count(Choice(states=(State.all,)).filter())
    if as_json:
        print_json([as_object(letter, pointer_text, with_traceback=False) for letter in found])
    elif found:
        print_table(COLUMNS, [as_row(letter, pointer_text) for letter in found], numbers=NUMBERS)
    elif others:
        say(f"No letter is waiting; {count_text(others, 'letter')} are settled. --state all shows them.")
    else:
        say("No letter matches.")
    if more and not as_json:
        say(f"There are more. Continue with: --after {found[-1].id}")


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
    with open_letters(letters, url) as (opened, pointer_text):
        found = _those(opened, letters, ids)
    if as_json:
        print_json([as_object(letter, pointer_text, with_traceback=True) for letter in found])
    else:
        typer.echo("\n\n".join(as_text(letter, pointer_text) for letter in found))


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
    by: Annotated[By | None, typer.Option(help="Count by this, most frequent first.")] = None,
    as_json: AsJson = False,
) -> None:
    """Count dead letters."""
    which = Choice(group, topic, partition, error_kind, contains, since, until, tuple(state or ())).filter()
    with open_letters(letters, url) as (opened, _):
        if by is None:
            total = opened.count(which)
            counts: Counter[str] = Counter()
        else:
            counts = Counter(map(_COUNTED[by], _every(opened, which)))
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
        "penstock dlq redrive sqlite:./dead-letters.db --to amqp://localhost/orders",
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
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC|URL", help="Send them to this topic, or to the queue at this URL."),
    ] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="At most this many letters a second.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many letters.")] = None,
    new_timestamps: Annotated[
        bool,
        typer.Option(
            "--new-timestamps",
            help="Give records the current time. Use it when they are older than the retention of their topic.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Send the records of dead letters again, unchanged, for their group to handle.

    They are appended to their topic: other groups of this library ignore them, plain Kafka readers see them again.
    Run it again after an interruption or a kill: a record that was sent twice is handled once.
    """

    choice = Choice(group, topic, partition, error_kind, contains, since, until, ids=tuple(ids or ()))
    which = choice.filter()
    queue = _queue_url(to)
    with ExitStack() as stack:
        stream: Connection | None = None
        if queue is None or names_a_topic(letters):
            stream = stack.enter_context(open_connection(url))
        else:
            silence_log()
        opened = stack.enter_context(letters_of(letters, stream))
        if stream is not None and queue is None and to is not None:
            stream.admin().require(to)
        for letter in _those(opened, letters, ids or ()):
            if letter.state not in which.states:
                raise ConfigError(f"letter {letter.id} is {letter.state}: only waiting letters can be redriven")
        if dry_run:
            dry_report(opened, which, to if queue is None else without_password(queue), limit, as_json)
            return
        target: Connection | Queue | None = stream
        if queue is not None:
            target, to = stack.enter_context(closing(open_queue(queue))), None
        assert target is not None
        code = run_redrive(opened, target, which, to, rate, limit, new_timestamps, as_json)
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
    everything: Annotated[bool, typer.Option("--all", help="All waiting letters.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Mark letters as not needed. They stay stored, and are not redriven; --state discarded lists them."""
    choice = Choice(group, topic, partition, error_kind, contains, since, until, ids=tuple(ids or ()))
    if choice.is_everything != everything:
        raise typer.BadParameter("choose letters: by id, by a filter, or --all", param_hint="ID")
    which = choice.filter()
    with open_letters(letters, url) as (opened, _):
        _those(opened, letters, ids or ())
        found = [letter.id for letter in _every(opened, which)]
        if found and not yes:
            confirm(f"Discard {count_text(len(found), 'letter')}?", "Nothing was discarded.")
        discarded = sum(opened.discard(found[start : start + _PAGE]) for start in range(0, len(found), _PAGE))
    report({"discarded": discarded}, f"Discarded {count_text(discarded, 'letter')}.", as_json=as_json)


def _queue_url(to: str | None) -> str | None:
    """`--to` if it is the URL of a queue; None for a topic. Raises UrlError for a URL of anything else."""
    queue = as_queue(to)
    if isinstance(queue, str) and scheme_of(queue) == "memory":
        raise ConfigError(f"--to {to}: a queue in memory ends with this command, and so would the records sent to it")
    return queue if isinstance(queue, str) else None


def _list_topics(url: str, as_json: bool) -> None:
    states = [state for state in State if state is not State.all]
    rows = []
    with open_connection(url) as stream:
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
        say(f"No topic ends in {_SUFFIX}. Dead letters elsewhere: penstock dlq list sqlite:PATH")


def _those(opened: DeadLetters, letters: str, ids: Sequence[str]) -> list[DeadLetter]:
    """The letters with these ids, in any state, in the given order. Raises ConfigError for the first unknown id."""
    if not ids:
        return []
    which = Choice(states=(State.all,), ids=tuple(ids)).filter()
    found = {letter.id: letter for letter in opened.browse(which, len(ids))}
    for id in ids:
        if id not in found:
            raise ConfigError(f"there is no letter {id!r} in {letters}; to see them: penstock dlq list {letters}")
    return [found[id] for id in ids]


def _every(opened: DeadLetters, which: DeadLetterFilter) -> Iterator[DeadLetter]:
    last: str | None = None
    while page := opened.browse(which, _PAGE, last):
        yield from page
        last = page[-1].id


_COUNTED: Final[dict[By, Callable[[DeadLetter], str]]] = {
    By.STATE: lambda letter: letter.state.value,
    By.GROUP: lambda letter: letter.group,
    By.TOPIC: lambda letter: letter.record.topic,
    By.PARTITION: lambda letter: f"{letter.record.topic}-{letter.record.partition}",
    By.ERROR_KIND: lambda letter: letter.error_kind,
    By.HANDLER: lambda letter: f"{letter.handler} {letter.handler_version}".rstrip(),
}
