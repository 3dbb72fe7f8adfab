"""`penstock prove`: kill the broker, and count what was lost and repeated."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.cli.options import examples
from penstock.cli.output import size_text
from penstock.cli.stream import silence_log
from penstock.cli.tables import print_table
from penstock.errors import PenstockError
from penstock.prove.broker_process import BrokerProcess, Recovery
from penstock.prove.outage import Outcome, Plan, run
from penstock.prove.tally import Tally

app = typer.Typer(
    name="prove",
    rich_markup_mode=None,
    help="Kill processes on purpose, and count what was lost and repeated.",
    no_args_is_help=True,
)
EXAMPLES: Final = examples("penstock prove outage", "penstock prove outage --records 1000000 --kills 5 --seed 7 --keep")


@app.callback()
def prove() -> None:
    """Without it, typer would make the only command the noun itself."""


@app.command("outage", epilog=EXAMPLES)
def outage(
    records: Annotated[int, typer.Option(min=1, help="How many records to send.")] = 300_000,
    kills: Annotated[int, typer.Option(min=0, help="How often to kill the broker meanwhile.")] = 2,
    seed: Annotated[int, typer.Option(help="Determines when: the same seed kills at the same points.")] = 1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data folder, and print its path.")] = False,
) -> None:
    """Send records to a broker that is killed and recovers, read them back, and count.

    Several producers send with acks=all while the broker gets SIGKILL. No acknowledged record may be missing or
    duplicated, and the records of a key must be in order. The exit code is 0 only if that holds.
    """
    silence_log()
    plan = Plan(records=records, kills=kills, seed=seed)
    with _folder(keep) as folder, Show(plan) as show:
        outcome = run(plan, folder, show)
    _report(plan, outcome)
    if not outcome.verdict.holds:
        raise PenstockError(f"the guarantees did not hold with seed {seed}; keep the folder with --keep to inspect it")


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    if not keep:
        with tempfile.TemporaryDirectory(prefix="penstock-outage-") as name:
            yield Path(name)
        return
    folder = Path(tempfile.mkdtemp(prefix="penstock-outage-"))
    try:
        yield folder
    finally:
        typer.echo(f"The log is in {folder}; inspect it with: penstock topics --url 'log:{folder / 'data'}'")


class Show:
    """Prints a line for each event; on a terminal with progress bars."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stack = ExitStack()
        self._bars: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Show:
        if sys.stdout.isatty():
            columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = self._stack.enter_context(Progress(*columns))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def started(self, broker: BrokerProcess, first_start: Recovery) -> None:
        self._say(
            f"A broker listens at 127.0.0.1:{broker.port} (process {broker.pid}) "
            f"{first_start.seconds:.2f} s after its start."
        )
        self._say(f"{self._plan.producers} producers send {self._plan.records:,} records with acks=all.")
        self._begin("acknowledged")

    def sending(self, tally: Tally) -> None:
        self._move(tally.acknowledged)

    def killed(self, broker: BrokerProcess, tally: Tally) -> None:
        self._say(
            f"kill -9 {broker.pid}: {tally.acknowledged:,} records were acknowledged, "
            f"{tally.sent - tally.acknowledged:,} are under way."
        )

    def recovered(self, broker: BrokerProcess, recovery: Recovery) -> None:
        cut = (
            f", {size_text(recovery.truncated_bytes)} of unfinished writes truncated"
            if recovery.truncated_bytes
            else ""
        )
        self._say(
            f"It is back (process {broker.pid}) after {recovery.seconds:.2f} s: "
            f"{size_text(recovery.scanned_bytes)} scanned{cut}. The producers retry."
        )

    def sent(self, tally: Tally, seconds: float) -> None:
        self._move(tally.acknowledged)
        self._say(f"All {tally.acknowledged:,} are acknowledged after {seconds:.1f} s. A group reads them back.")
        self._begin("read")

    def reading(self, tally: Tally) -> None:
        self._move(tally.read)

    def _say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            typer.echo(text)

    def _begin(self, description: str) -> None:
        if self._bars is not None:
            self._task = self._bars.add_task(description, total=self._plan.records)

    def _move(self, completed: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.update(self._task, completed=completed)


def _report(plan: Plan, outcome: Outcome) -> None:
    verdict = outcome.verdict
    rows: list[tuple[str, str, str]] = [
        ("sent", f"{verdict.sent:,}", ""),
        ("acknowledged", f"{verdict.acknowledged:,}", _mark(verdict.acknowledged == verdict.sent)),
        ("lost", f"{verdict.lost:,}", _mark(verdict.lost == 0)),
        ("duplicates", f"{verdict.duplicates:,}", _mark(verdict.duplicates == 0)),
        ("out of order for their key", f"{verdict.out_of_order:,}", _mark(verdict.out_of_order == 0)),
        ("outages", ", ".join(f"{seconds:.2f} s" for seconds in outcome.outages_s) or "none", ""),
        ("stored", size_text(outcome.stored_bytes), ""),
        ("sent a second, outages included", f"{verdict.acknowledged / outcome.produce_s:,.0f}", "acks=all, fsync"),
        ("read a second", f"{verdict.read / outcome.consume_s:,.0f}", ""),
    ]
    typer.echo("")
    print_table(["what", f"seed {plan.seed}", ""], rows, numbers=[f"seed {plan.seed}"])


def _mark(holds: bool) -> str:
    return "ok" if holds else "WRONG"
