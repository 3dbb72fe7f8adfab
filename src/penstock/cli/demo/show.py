"""What the terminal shows: a line for each thing that happens, and how things stand, live or every few seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import typer

from penstock.cli.demo.checking import Check
from penstock.cli.demo.live import Happening, Live
from penstock.cli.demo.outcome import Outcome
from penstock.cli.demo.plan import DemoSettings
from penstock.cli.output import print_table

if TYPE_CHECKING:
    from rich.table import Table

_LINE_EVERY_S: Final = 5.0
_REFRESH_EVERY_S: Final = 0.25


class Show:
    """Plain lines: for files, pipes, and whoever reads along in CI."""

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        self._settings = settings
        self._live = live
        self._shown_s = 0.0
        self._console_told = False
        self._session_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @staticmethod
    def tell_of_folder(folder: Path) -> None:
        typer.echo(f"The data is in {folder}; look into it with: penstock topics --url 'log:{folder / 'data'}'")

    def happened(self, happening: Happening) -> None:
        self._print(f"{happening.at_s:6.1f} s  {happening.text}")

    def update(self) -> None:
        """Called often; shows something when it is time."""
        live = self._live
        if live.console is not None and not self._console_told:
            self._console_told = True
            self.happened(live.happened(f"The console is at {live.console}"))
        if live.has_session and not self._session_told:
            self._session_told = True
            mode = ", with its Kafka connector and a query in real-time mode" if live.is_real_time else ""
            self.happened(live.happened(f"Spark is up{mode}."))
        if live.now_s - self._shown_s >= self._every_s():
            self._shown_s = live.now_s
            self._refresh()

    def summary(self, outcome: Outcome, files: Sequence[Path]) -> None:
        checks = [*outcome.checks, *outcome.figures()]
        self._print("")
        self._table(outcome, checks)
        self._print("")
        if outcome.wrong:
            self._print("NOT everything is as promised: see the lines that say WRONG.")
        else:
            self._print("Nothing was lost, and every total is what the generator counted.")
        self._print(f"The report: {', '.join(map(str, files))}")

    def _every_s(self) -> float:
        return _LINE_EVERY_S

    def _refresh(self) -> None:
        live = self._live
        self._print(
            f"{live.now_s:6.1f} s  sent {live.sent:,} · judged {live.verdicts:,} · lag {live.lag:,} · "
            f"partial {live.partial:,} · dead letters {live.letters:,}{self._spark_text()}"
        )

    def _spark_text(self) -> str:
        return "".join(
            f" · {name} on Spark: {query.read:,} read, {query.written:,} written"
            for name, query in sorted(self._live.queries.items())
        )

    def _table(self, outcome: Outcome, checks: Sequence[Check]) -> None:
        rows = [(each.name, each.value, mark_of(each), each.note) for each in checks]
        print_table(
            ["what", f"seed {outcome.settings.seed}", "", "how"], rows, numbers=[f"seed {outcome.settings.seed}"]
        )

    def _print(self, text: str) -> None:
        typer.echo(text)


class LiveShow(Show):
    """On a terminal: the same lines, and below them a table that is redrawn in its place."""

    def __init__(self, settings: DemoSettings, live: Live) -> None:
        super().__init__(settings, live)
        from rich.console import Console
        from rich.live import Live as LiveDisplay

        self._terminal = Console(highlight=False, emoji=False, markup=False)
        self._display = LiveDisplay(console=self._terminal, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def summary(self, outcome: Outcome, files: Sequence[Path]) -> None:
        self._display.stop()
        super().summary(outcome, files)

    def happened(self, happening: Happening) -> None:
        is_bad, is_good = happening.mark.endswith("killed"), bool(happening.mark)
        style = "bold red" if is_bad else "green" if is_good else ""
        self._terminal.print(f"{happening.at_s:6.1f} s  {happening.text}", style=style)

    def _every_s(self) -> float:
        return _REFRESH_EVERY_S

    def _refresh(self) -> None:
        self._display.update(self.standing(), refresh=True)

    def _print(self, text: str) -> None:
        self._terminal.print(text)

    def standing(self) -> Table:
        """How things stand now."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

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
            table.add_row(f"Spark: {query}", f"{state.read:,}", f"read, {state.written:,} rows written, {state.state}")
        if live.console is not None:
            table.add_row("console", "", live.console)
        return table


def show_for(settings: DemoSettings, live: Live) -> Show:
    return LiveShow(settings, live) if sys.stdout.isatty() else Show(settings, live)


def mark_of(check: Check) -> str:
    return {True: "ok", False: "WRONG", None: ""}[check.holds]
