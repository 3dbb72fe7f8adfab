"""`penstock lag`: who is behind, by how much, since when, and whether records will be lost."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.output import print_json, print_table, say
from penstock.cli.stream import DEFAULT_URL, AsJson, Url, examples, open_stream
from penstock.errors import BrokerUnavailableError, GroupError, UnknownTopicError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.observe.facts import Snapshot
    from penstock.observe.lag_rows import LagRow
    from penstock.streams import Connection

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
"""Of so many looks, the newest, paces are made."""
_UNITS_S: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_COLUMNS: Final = ("group", "topic", "lag", "waiting", "read/s", "to drain", "to loss", "state")


def lag(
    url: Url = DEFAULT_URL,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="GROUP", help="Only this group; may be repeated.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until interrupted.")] = False,
    duration: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Look for so long, such as 30s, to measure how fast everything goes; 0s looks once, and tells no "
            "rates. With --watch, end after it.  [default: 4s]",
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
            metavar="DURATION", help="Exit with 1 if retention will overtake a group within this, such as 6h."
        ),
    ] = None,
) -> None:
    """Show how far groups are behind: records, seconds, when they will have caught up, and when records will be lost.

    Rates need two looks, which are taken a few seconds apart, unless a console keeps a history beside the log.
    """
    for_s = _seconds(duration, "--for")
    loss_s = _seconds(fail_if_loss_within, "--fail-if-loss-within")
    groups, topics = group or [], topic or []
    rows: list[LagRow] = []
    with open_stream(url) as stream:
        looks = _watched(stream, for_s) if watch else iter([_measured(stream, for_s, as_json)])
        for snapshots in looks:
            rows = _chosen(snapshots, groups, topics)
            _show(rows, as_json, watch)
    reasons = list(_failures(rows, fail_if_lag_s, loss_s))
    for reason in reasons:
        say(reason)
    if reasons:
        raise typer.Exit(1)


def _measured(stream: Connection, for_s: float | None, as_json: bool) -> list[Snapshot]:
    """Snapshots over a while; one alone, when nobody wants rates or a history knows them."""
    from penstock.observe.looking import Looker

    looker = Looker(stream)
    try:
        first = _look(looker.look())
        if for_s is None and (recalled := _recalled(stream.url, first)) is not None:
            return [recalled]
        measure_s = _MEASURE_S if for_s is None else for_s
        found = [first]
        if measure_s and first.groups and not as_json:
            say(f"Looking for {measure_s:g} s to see how fast everything goes ...")
        until_s = time.monotonic() + measure_s
        while first.groups and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(_EVERY_S, left_s))
            found = [*found, _look(looker.look())][-_MOST:]
        return found
    finally:
        looker.close()


def _watched(stream: Connection, for_s: float | None) -> Iterator[list[Snapshot]]:
    """The latest snapshots, each time there is a new one. There are two at least, so that rates are seen."""
    from penstock.observe.looking import Looker

    looker = Looker(stream)
    until_s = None if for_s is None else time.monotonic() + for_s
    found: list[Snapshot] = []
    try:
        while True:
            found = [*found, _look(looker.look())][-_MOST:]
            yield found
            left_s = _EVERY_S if until_s is None else min(_EVERY_S, until_s - time.monotonic())
            if left_s <= 0 and len(found) > 1:
                return
            time.sleep(max(0.0, left_s))
    finally:
        looker.close()


def _look(snapshot: Snapshot) -> Snapshot:
    if snapshot.problem is not None:
        raise BrokerUnavailableError(snapshot.problem)
    return snapshot


def _recalled(url: str, snapshot: Snapshot) -> Snapshot | None:
    """The snapshot with the paces that a console's history knows, if there is one that does."""
    from penstock.observe.history import History
    from penstock.observe.recalling import history_beside, recalled

    path = history_beside(url)
    if path is None:
        return None
    history = History(path)
    try:
        return recalled(snapshot, history)
    finally:
        history.close()


def _chosen(snapshots: list[Snapshot], groups: list[str], topics: list[str]) -> list[LagRow]:
    from penstock.observe.lag_rows import lag_rows

    now = snapshots[-1]
    for name in groups:
        if name not in now.groups:
            raise GroupError(f"there is no group {name!r}; see what there is with: penstock groups")
    for name in topics:
        if name not in now.topics:
            raise UnknownTopicError(f"there is no topic {name!r}; see what there is with: penstock topics")
    return lag_rows(snapshots, groups, topics)


def _show(rows: list[LagRow], as_json: bool, watch: bool) -> None:
    if as_json and watch:
        import msgspec

        typer.echo(msgspec.json.encode(rows).decode())
        return
    if as_json:
        print_json(rows)
        return
    if watch and sys.stdout.isatty():
        typer.echo("\x1b[H\x1b[2J", nl=False)
    if rows:
        print_table(_COLUMNS, map(_cells, rows), numbers=_COLUMNS[2:7])
    else:
        say("No group has committed anything here. One is made by reading: penstock consume TOPIC --group NAME")
    if watch and not sys.stdout.isatty():
        typer.echo("")


def _cells(row: LagRow) -> tuple[object, ...]:
    from penstock.observe.alerts.wording import duration_text

    drain = "-"
    if row.time_to_drain_s is not None:
        drain = duration_text(row.time_to_drain_s) if row.lag else "0 s"
    elif row.rate_per_s is not None:
        drain = "never"
    loss = "-"
    if row.time_to_loss_s is not None:
        loss = duration_text(row.time_to_loss_s) if row.time_to_loss_s else "now"
    return (
        row.group,
        row.topic,
        f"{row.lag:,}",
        None if row.lag_s is None else duration_text(row.lag_s),
        None if row.rate_per_s is None else f"{row.rate_per_s:,.1f}",
        drain,
        loss if not row.lost else f"{loss} ({row.lost:,} lost)",
        row.state,
    )


def _failures(rows: list[LagRow], lag_s: float | None, loss_s: float | None) -> Iterator[str]:
    """What a script wanted to be told of."""
    from penstock.observe.alerts.wording import duration_text

    for row in rows:
        if lag_s is not None and row.lag_s is not None and row.lag_s > lag_s:
            yield f"{row.group} is {duration_text(row.lag_s)} behind in {row.topic}."
        if loss_s is not None and row.time_to_loss_s is not None and row.time_to_loss_s <= loss_s:
            when = f"in {duration_text(row.time_to_loss_s)}" if row.time_to_loss_s else "now"
            yield f"{row.group} will lose records of {row.topic} {when}: read faster, or raise the topic's retention."


def _seconds(text: str | None, option: str) -> float | None:
    """A length of time: 30s, 5m, 6h, 2d."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS_S:
        raise typer.BadParameter(f"{text!r} is no length of time: write 30s, 5m, 6h or 2d", param_hint=option)
    return float(match[1]) * _UNITS_S[match[2]]
