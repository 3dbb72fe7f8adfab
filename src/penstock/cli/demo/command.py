"""The command itself: its options, its folder, and what its outcome means for the exit code."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.stream import examples, hush
from penstock.errors import PenstockError

EXAMPLES: Final = examples(
    "penstock demo",
    "penstock demo --stay",
    "penstock demo --seconds 20 --rate 2000 --seed 7 --no-spark",
    "penstock demo --report ./report --keep",
)
REPORT: Final = Path("penstock-demo-report")


def demo(
    seconds: Annotated[float, typer.Option(min=1, help="How long events are sent.")] = 60.0,
    rate: Annotated[int, typer.Option(min=10, max=20_000, help="Events a second.")] = 400,
    seed: Annotated[int, typer.Option(help="Decides what is sent: the same seed, the same events.")] = 1,
    report: Annotated[Path, typer.Option(metavar="DIR", help="Where the report is written.")] = REPORT,
    stay: Annotated[
        bool, typer.Option("--stay", help="Go on after the summary, with events and console, until Ctrl-C.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the data folder behind, and say where it is.")] = False,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave the pipeline on Spark out.")] = False,
    no_console: Annotated[bool, typer.Option("--no-console", help="Leave the console out.")] = False,
    since: Annotated[
        float | None, typer.Option(hidden=True, help="When the clock began, in seconds since 1970.")
    ] = None,
    fault: Annotated[
        str | None, typer.Option(hidden=True, help="Have the generator lie about this: the demo must fail.")
    ] = None,
) -> None:
    """See it all at work for about two minutes: events flow, parts are killed, nothing is lost.

    A generator sends card transactions, some of them malformed, and page events, to an embedded log in a temporary
    folder. Two consumers judge transactions, each within 20 ms, and count page events exactly once; a pipeline on Spark
    adds them up per 10 seconds. One consumer, the driver of the pipeline and the broker are killed with SIGKILL on the
    way. In the end everything that came out is held against the generator's own count: the exit code is 0 only if
    nothing was lost and every total is right. A report is written as HTML and PNG.

    Without Java, or without the extra packages, the parts that need them are left out, and it says what to install.
    """
    began_s = time.monotonic()
    from penstock.cli.demo.course import run
    from penstock.cli.demo.generator import FAULTS
    from penstock.cli.demo.plan import DemoSettings

    hush()
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
            f"the demo found something wrong with seed {seed}: {'; '.join(wrong)}. "
            "Run it again with --keep to look into its folder"
        )
