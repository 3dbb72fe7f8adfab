"""The `penstock demo` command: its options and its exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import examples
from penstock.cli.stream import silence_log
from penstock.demo.generator import FAULTS
from penstock.demo.run import run
from penstock.demo.settings import DemoSettings
from penstock.errors import PenstockError

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock demo",
    "penstock demo --stay",
    "penstock demo --seconds 20 --rate 2000 --seed 7 --no-spark",
    "penstock demo --report ./report --keep",
)
REPORT: Final = Path("penstock-demo-report")


@app.command("demo", epilog=EXAMPLES)
def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long events are sent.")] = 60.0,
    rate: Annotated[int, typer.Option(min=10, max=20_000, help="Events a second.")] = 400,
    seed: Annotated[int, typer.Option(help="Determines the events: the same seed sends the same events.")] = 1,
    report: Annotated[Path, typer.Option(metavar="DIR", help="Where the report is written.")] = REPORT,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep running after the summary, with events and console, until Ctrl-C.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data folder, and print its path.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Run without the Spark pipeline.")] = False,
    no_console: Annotated[bool, typer.Option("--no-console", help="Run without the console.")] = False,
    since: Annotated[
        float | None, typer.Option(hidden=True, help="When the clock began, in seconds since 1970.")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(hidden=True, help="Have the generator lie about this: the demo must fail.")
    ] = None,
) -> None:
    """Run everything for about two minutes: events flow, processes are killed, nothing is lost.

    A generator sends card transactions, some of them malformed, and page events, to an embedded log in a temporary
    folder. Two consumers judge transactions, each within 20 ms, and count page events exactly once; a pipeline on Spark
    counts them per 10 seconds. One consumer, the driver of the pipeline and the broker are killed with SIGKILL. At the
    end, all results are compared with the generator's own count: the exit code is 0 only if nothing was lost and every
    total is right. It writes a report as one HTML page.

    Without Java, or without the extra packages, it skips the parts that need them, and says what to install.
    """
    began_s = time.monotonic()
    silence_log()
    if fault is not None and fault not in FAULTS:
        raise typer.BadParameter(f"{fault!r} is not one of {', '.join(FAULTS)}", param_hint="--fault")
    settings = DemoSettings(
        seconds=seconds,
        rate=rate,
        seed=seed,
        with_spark=not no_spark,
        with_console=not no_console,
        stay=stay,
        report=report,
        since_s=since,
        fault=fault,
    )
    wrong = run(settings, keep=keep, began_s=began_s)
    if wrong:
        raise PenstockError(
            f"the demo failed with seed {seed}: {'; '.join(wrong)}. Run it again with --keep to look into its folder"
        )
