"""The terminal output: a line per event, and the current counts, live or every few seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import typer
from rich.console import Console
from rich.live import Live as LiveDisplay
from rich.progress_bar import ProgressBar
from rich.table import Table

from penstock.cli.tables import print_table
from penstock.demo.checking import Check, Outcome
from penstock.demo.live import DemoEvent, Live, QueryState
from penstock.demo.settings import DemoSettings


class Show:
    """Plain lines: for files, pipes and CI."""

    every_s = 5.0

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        self._settings = settings
        self._live = live
        self._shown_s = 0.0
        self._console_told = False
        self._session_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def happened(self, event: DemoEvent) -> None:
        self._print(f"{event.at_s:6.1f} s  {event.text}")

    def update(self) -> None:
        """Called often; prints when it is time."""
        live = self._live
        if live.console is not None and not self._console_told:
            self._console_told = True
            self.happened(live.happened(f"The console is at {live.console}"))
        if live.has_session and not self._session_told:
            self._session_told = True
            mode = ", with its Kafka connector and a query in real-time mode" if live.is_real_time else ""
            self.happened(live.happened(f"Spark is up{mode}."))
        if live.now_s - self._shown_s >= self.every_s:
            self._shown_s = live.now_s
            self._refresh()

    def summary(self, outcome: Outcome, file: Path) -> None:
        checks = [*outcome.checks, *outcome.figures()]
        self._print("")
        self._table(outcome, checks)
        self._print("")
        if outcome.wrong:
            self._print("NOT everything is as promised: see the lines that say WRONG.")
        else:
            self._print("Nothing was lost, and every total is what the generator counted.")
        self._print(f"The report: {file}")

    def _refresh(self) -> None:
        live = self._live
        spark = "".join(f" · {name} on Spark: {_query_text(query)}" for name, query in sorted(live.queries.items()))
        self._print(
            f"{live.now_s:6.1f} s  sent {live.sent:,} · judged {live.verdicts:,} · lag {live.lag:,} · "
            f"partial {live.partial:,} · dead letters {live.letters:,}{spark}"
        )

    def _table(self, outcome: Outcome, checks: Sequence[Check]) -> None:
        rows = [(each.name, each.value, mark_of(each), each.note) for each in checks]
        print_table(
            ["what", f"seed {outcome.settings.seed}", "", "how"], rows, numbers=[f"seed {outcome.settings.seed}"]
        )

    def _print(self, text: str) -> None:
        typer.echo(text)


class LiveShow(Show):
    """On a terminal: the same lines, and below them a table that is redrawn in place."""

    every_s = 0.25

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        super().__init__(settings, live)
        self._terminal = Console(highlight=False, emoji=False, markup=False)
        self._display = LiveDisplay(console=self._terminal, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    def summary(self, outcome: Outcome, file: Path) -> None:
        self._display.stop()
        super().summary(outcome, file)

    def happened(self, event: DemoEvent) -> None:
        is_bad, is_good = event.mark.endswith("killed"), bool(event.mark)
        style = "bold red" if is_bad else "green" if is_good else ""
        self._terminal.print(f"{event.at_s:6.1f} s  {event.text}", style=style)

    def _refresh(self) -> None:
        self._display.update(self.standing(), refresh=True)

    def _print(self, text: str) -> None:
        self._terminal.print(text)

    def standing(self) -> Table:
        live = self._live
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(justify="right", style="dim")
        table.add_column(justify="right", style="bold")
        table.add_column()
        table.add_row("", "", "")
        total = self._settings.events
        table.add_row("sent", f"{live.sent:,}", ProgressBar(total=total, completed=min(live.sent, total), width=40))
        table.add_row("judged", f"{live.verdicts:,}", f"{live.partial:,} partial at the deadline of 20 ms")
        table.add_row("lag", f"{live.lag:,}", f"transactions; {live.page_lag:,} page events")
        table.add_row("dead letters", f"{live.letters:,}", "malformed rows")
        for name, consumer in sorted(live.consumers.items()):
            has = ", ".join(
                f"{topic} {' '.join(map(str, sorted(partitions)))}"
                for topic, partitions in sorted(consumer.assigned.items())
                if partitions
            )
            standing = "killed" if consumer.is_killed else has or "has no partitions"
            table.add_row(name, f"{consumer.calls:,}", standing)
        for query, state in sorted(live.queries.items()):
            table.add_row(f"Spark: {query}", f"{state.read:,}", f"{_query_text(state)}, {state.state}")
        if live.console is not None:
            table.add_row("console", "", live.console)
        return table


def _query_text(query: QueryState) -> str:
    """What it has read and written. The first batch of a driver is slow, as Spark loads a lot."""
    if query.state == "waiting":
        return f"starts again after {query.error}"
    if not query.read:
        return "its first batch is running"
    return f"{query.read:,} read, {query.written:,} written"


def show_for(settings: DemoSettings, live: Live) -> Show:
    return LiveShow(settings, live) if sys.stdout.isatty() else Show(settings, live)


def mark_of(check: Check) -> str:
    return {True: "ok", False: "WRONG", None: ""}[check.holds]
