"""What `penstock dlq redrive` does and says: progress, a report, and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from penstock.cli.output import count_text, print_json, say

if TYPE_CHECKING:
    from penstock.abc import DeadLetters
    from penstock.consuming.dead_letters import RedriveReport
    from penstock.model import LetterFilter
    from penstock.streams import Connection


def dry_report(opened: DeadLetters, which: LetterFilter, to: str | None, limit: int | None, as_json: bool) -> None:
    """Tell what a redrive would do."""
    matching = opened.count(which)
    wanted = matching if limit is None else min(matching, limit)
    if as_json:
        print_json({"dry_run": True, "matching": matching, "would_redrive": wanted, "to": to})
    else:
        where = "their own topics" if to is None else to
        say(f"{count_text(wanted, 'letter')} of {matching:,} would be redriven to {where}. Nothing was sent.")


def run_redrive(
    opened: DeadLetters,
    stream: Connection,
    which: LetterFilter,
    to: str | None,
    rate: float | None,
    limit: int | None,
    new_timestamps: bool,
    as_json: bool,
) -> int:
    """Redrive, tell what came of it, and give the exit code."""
    from penstock.consuming.dead_letters import redrive
    from penstock.model.clock import SystemClock

    with _progress(opened, which, limit) as show:
        report = redrive(
            opened,
            stream,
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
        say(f"{count_text(report.failed, 'letter')} could not be sent and wait again.")
    if report.gone:
        say(f"{count_text(report.gone, 'letter')} were dealt with by others meanwhile.")
    if report.gave_up:
        say("Nothing came through any more, so it stopped: see that the stream takes records, and run it again.")
    if report.interrupted:
        say("It was interrupted: run it again to go on.")


@contextmanager
def _progress(
    opened: DeadLetters, which: LetterFilter, limit: int | None
) -> Iterator[Callable[[RedriveReport], None] | None]:
    """A bar, where somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
