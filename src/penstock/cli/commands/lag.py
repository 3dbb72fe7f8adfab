"""`penstock lag`: which groups are behind, by how much, and whether records will be lost."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from penstock.cli.options import DEFAULT_URL, AsJson, Checkpoints, Url, examples
from penstock.cli.output import print_json, say, size_text
from penstock.cli.quantities import seconds
from penstock.cli.stream import open_connection
from penstock.cli.tables import print_table
from penstock.errors import BrokerUnavailableError, GroupError, UnknownTopicError
from penstock.model.administration import ANSWER_TIMEOUT_S
from penstock.model.text import LONGEST_ERROR, duration_text, shown_name
from penstock.observe.captures import loss_remedy
from penstock.observe.facts import Snapshot
from penstock.observe.history.history import History
from penstock.observe.lag_rows import CaptureRow, LagRow, capture_rows, history_beside, lag_rows, recalled
from penstock.observe.library_groups import check_given, no_groups_text
from penstock.observe.stream_observer import StreamObserver

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock lag",
    "penstock lag --group billing --for 30s",
    "penstock lag --watch",
    "penstock lag --json --for 0s",
    "penstock lag --group billing --fail-if-lag-s 60 --fail-if-loss-within 6h",
)
_MEASURE_S: Final = 4.0
_EVERY_S: Final = 2.0
_MOST: Final = 40
"""Rates are computed from this many looks, the newest."""
_CAPTURES: Final = ("capture", "database", "behind", "room", "to loss", "state")
_COLUMNS: Final = ("group", "topic", "lag", "waiting", "read/s", "to drain", "to loss", "state")


@app.command("lag", epilog=EXAMPLES)
def lag(
    url: Url = DEFAULT_URL,
    checkpoints: Checkpoints = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group; may be repeated.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until interrupted.")] = False,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Look for this long, such as 30s, to measure rates; 0s looks once, without rates. With --watch, "
            "end after it.  [default: 4s]",
        ),
    ] = None,
    as_json: AsJson = False,
    fail_if_lag_s: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Exit with 1 if a record has been waiting for longer than this."),
    ] = None,
    fail_if_loss_within: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Exit with 1 if a group or a capture will lose records within this, such as 6h.",
        ),
    ] = None,
) -> None:
    """Show the lag of groups: in records, in seconds, when they will have caught up, and when records will be lost.

    Captures of databases (penstock cdc) follow, unless groups or topics are chosen: how far they are behind, and when
    the database will remove changes that they have not read.

    Rates need two looks, a few seconds apart, unless a console keeps a history beside the log.
    """
    for_s = _seconds(duration, "--for")
    loss_s = _seconds(fail_if_loss_within, "--fail-if-loss-within")
    groups, topics = group or [], topic or []
    rows: list[LagRow] = []
    captures: list[CaptureRow] = []
    with open_connection(url) as stream:
        check_given(stream, checkpoints)
        nothing = no_groups_text(stream, checkpoints)
        with contextlib.closing(
            StreamObserver(stream, checkpoints=checkpoints, timeout_s=ANSWER_TIMEOUT_S)
        ) as observer:
            looks = _watched(observer, for_s) if watch else iter([_measured(observer, stream.url, for_s, as_json)])
            for snapshots in looks:
                rows = _chosen(snapshots, groups, topics)
                captures = [] if groups or topics else capture_rows(snapshots[-1])
                _show(rows, captures, nothing, as_json, watch)
    reasons = [*_failures(rows, fail_if_lag_s, loss_s), *_losses(captures, loss_s)]
    for reason in reasons:
        say(reason)
    if reasons:
        raise typer.Exit(1)


def _measured(observer: StreamObserver, url: str, for_s: float | None, as_json: bool) -> list[Snapshot]:
    """Several snapshots; only one when rates are not wanted or a history has them."""
    first = _look(observer.look())
    if for_s is None and (recalled := _recalled(url, first)) is not None:
        return [recalled]
    measure_s = _MEASURE_S if for_s is None else for_s
    found = [first]
    if measure_s and first.groups and not as_json:
        say(f"Measuring rates for {measure_s:g} s ...")
    until_s = time.monotonic() + measure_s
    while first.groups and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(_EVERY_S, left_s))
        found = [*found, _look(observer.look())][-_MOST:]
    return found


def _watched(observer: StreamObserver, for_s: float | None) -> Iterator[list[Snapshot]]:
    """The latest snapshots, at each new one; at least two, so that there are rates."""
    until_s = None if for_s is None else time.monotonic() + for_s
    found: list[Snapshot] = []
    while True:
        found = [*found, _look(observer.look())][-_MOST:]
        yield found
        left_s = _EVERY_S if until_s is None else min(_EVERY_S, until_s - time.monotonic())
        if left_s <= 0 and len(found) > 1:
            return
        time.sleep(max(0.0, left_s))


def _look(snapshot: Snapshot) -> Snapshot:
    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    return snapshot


def _recalled(url: str, snapshot: Snapshot) -> Snapshot | None:
    """The snapshot with rates from a console's history, if it has them."""
    path = history_beside(url)
    if path is None:
        return None
    with contextlib.closing(History(path)) as history:
        return recalled(snapshot, history)


def _chosen(snapshots: list[Snapshot], groups: list[str], topics: list[str]) -> list[LagRow]:
    now = snapshots[-1]
    for name in groups:
        if name not in now.groups:
            raise GroupError(f"there is no group {name!r}; list them with: penstock groups")
    for name in topics:
        if name not in now.topics:
            raise UnknownTopicError(f"there is no topic {name!r}; list them with: penstock topics")
    return lag_rows(snapshots, groups, topics)


def _show(rows: list[LagRow], captures: list[CaptureRow], nothing: str, as_json: bool, watch: bool) -> None:
    if as_json:
        print_json([*rows, *captures], indent=not watch)
        return
    if watch and sys.stdout.isatty():
        typer.echo("\x1b[H\x1b[2J", nl=False)
    if rows:
        print_table(_COLUMNS, map(_cells, rows), numbers=_COLUMNS[2:7])
        if any(row.lag is None for row in rows):
            say("Pointers of this stream do not count records, so the lag in records is unknown.")
    elif not captures:
        say(nothing)
    if captures:
        if rows:
            typer.echo("")
        print_table(_CAPTURES, map(_capture_cells, captures), numbers=_CAPTURES[2:5])
    if watch and not sys.stdout.isatty():
        typer.echo("")


def _cells(row: LagRow) -> tuple[object, ...]:
    drain = "-"
    if row.time_to_drain_s is not None:
        drain = "0 s" if row.lag == 0 else duration_text(row.time_to_drain_s)
    elif row.rate_per_s is not None and (row.is_counted or row.is_growing):
        drain = "never"
    loss = "-"
    if row.time_to_loss_s is not None:
        loss = duration_text(row.time_to_loss_s) if row.time_to_loss_s else "now"
    return (
        row.group,
        row.topic,
        ("-" if row.lag is None else f"{row.lag:,}") + _unread(row),
        None if row.lag_s is None else duration_text(row.lag_s),
        None if row.rate_per_s is None else f"{row.rate_per_s:,.1f}",
        drain,
        loss if not row.lost else f"{loss} ({f'{row.lost:,}' if row.is_counted else 'some'} lost)",
        row.state,
    )


def _capture_cells(row: CaptureRow) -> tuple[object, ...]:
    loss = "-" if row.time_to_loss_s is None else duration_text(row.time_to_loss_s) if row.time_to_loss_s else "now"
    return (
        row.capture,
        row.source,
        size_text(row.behind_bytes),
        size_text(row.room_bytes),
        "lost" if row.is_lost else loss,
        row.phase if row.error is None else f"{row.phase}: {shown_name(row.error, LONGEST_ERROR)}",
    )


def _unread(row: LagRow) -> str:
    if row.unread is None:
        return " (+ partitions not read yet)"
    return f" (+{row.unread:,} in partitions not read yet)" if row.unread else ""


def _failures(rows: list[LagRow], lag_s: float | None, loss_s: float | None) -> Iterator[str]:
    """The conditions that a script wants to fail on."""
    for row in rows:
        if lag_s is not None and row.lag_s is not None and row.lag_s > lag_s:
            yield f"{row.group} is {duration_text(row.lag_s)} behind in {row.topic}."
        if loss_s is not None and row.time_to_loss_s is not None and row.time_to_loss_s <= loss_s:
            when = f"in {duration_text(row.time_to_loss_s)}" if row.time_to_loss_s else "now"
            yield f"{row.group} will lose records of {row.topic} {when}: read faster, or raise the topic's retention."


def _losses(captures: list[CaptureRow], loss_s: float | None) -> Iterator[str]:
    for row in captures:
        if loss_s is not None and row.is_lost:
            yield f"Capture {row.capture} has lost changes: {row.error}"
        elif loss_s is not None and row.time_to_loss_s is not None and row.time_to_loss_s <= loss_s:
            when = f"in {duration_text(row.time_to_loss_s)}" if row.time_to_loss_s else "now"
            loss = f"will lose changes of {row.source} {when}"
            yield f"Capture {row.capture} ({row.phase}) {loss}: {loss_remedy(row.source)}."


def _seconds(text: str | None, option: str) -> float | None:
    """A duration: 30s, 5m, 6h, 2d. A bare number is in seconds."""
    if text is None:
        return None
    is_bare = text.strip().replace(".", "", 1).isdecimal()
    return seconds(f"{text}s" if is_bare else text.lower(), option)
