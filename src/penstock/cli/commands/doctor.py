"""`penstock doctor`: what on this machine keeps Penstock from working, and how to fix it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.checks import extras, machine, network
from penstock.cli.checks.finding import Finding, fail, warn
from penstock.cli.options import AsJson, examples
from penstock.cli.output import print_json, say
from penstock.cli.quantities import seconds
from penstock.cli.stream import silence_log
from penstock.errors import PenstockError, UrlError
from penstock.streams.url import LogUrl, parse_url

Check = Callable[[], Sequence[Finding]]


def examine(checks: Mapping[str, Check], within_s: float) -> list[Finding]:
    """The findings of all checks, in their order. A check without an answer in time is a warning."""
    deadline_s = time.monotonic() + within_s
    found: dict[str, Sequence[Finding]] = {}
    threads = []
    for what, check in checks.items():
        # Daemons: one that never ends must not keep the command from ending.
        thread = threading.Thread(target=_run, args=(what, check, found), name=f"doctor-{what}", daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    late = f"no answer within {within_s:g} s"
    return [
        finding
        for what in checks
        for finding in found.get(what, (warn(what, late, "allow more time with --within 30s, and see what is slow"),))
    ]


def _run(what: str, check: Check, found: dict[str, Sequence[Finding]]) -> None:
    try:
        found[what] = check()
    except PenstockError as error:
        found[what] = (fail(what, str(error), "see the message"),)
    except Exception as error:
        text = f"the check itself failed: {type(error).__name__}: {error}"
        found[what] = (fail(what, text, "this is a bug in penstock: please report it"),)


app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock doctor",
    "penstock doctor --url kafka://broker.example:9092",
    "penstock doctor --url log:./data --write --within 30s --json",
)
_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
_GRACE_S: Final = 0.5
"""Time for checks to report that they have timed out."""


@app.command("doctor", epilog=EXAMPLES)
def doctor(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_URL", metavar="URL", help="Also check this stream: kafka://HOST:PORT or log:FOLDER."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The log's folder. Default: that of a log: URL, or ./data.")
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Compare clocks with the stream, by a record in a temporary topic."),
    ] = False,
    within: Annotated[str, typer.Option(metavar="TIME", help="Time for all checks. More time checks more.")] = "2s",
    as_json: AsJson = False,
) -> None:
    """Check Python, Java, extras, ports, disk, clock, file handles and memory, and say what to fix.

    Exits with 1 if something does not work; what may cause trouble is a warning.
    """

    silence_log()
    within_s = seconds(within, "--within")
    if within_s <= 0:
        raise typer.BadParameter("must be positive, such as 3s", param_hint="--within")
    if write and url is None:
        raise typer.BadParameter("name the stream to write to with --url", param_hint="--write")
    findings = examine(_checks(url, data, write, within_s), within_s + _GRACE_S)
    failures = sum(finding.level == "fail" for finding in findings)
    if as_json:
        print_json(findings)
    else:
        _show(findings)
        warnings = sum(finding.level == "warn" for finding in findings)
        say(f"{len(findings)} findings: {failures} to fix, {warnings} warnings.")
    if failures:
        raise typer.Exit(1)


def _checks(url: str | None, data: Path | None, write: bool, within_s: float) -> dict[str, Check]:
    with_spark = extras.installed_version("pyspark") is not None
    checks: dict[str, Check] = {
        "python": machine.check_python,
        "extras": partial(extras.check_extras, within_s),
        "java": machine.check_java,
        "spark connector": machine.check_connector,
        "spark archive": machine.check_archive,
        "memory": partial(machine.check_memory, with_spark),
        "file handles": machine.check_handles,
        "data folder": partial(machine.check_data_folder, data or _folder_of(url) or Path("data")),
        "temporary": partial(machine.check_temporary, with_spark),
        "clock": machine.check_clock,
        "ports": network.check_ports,
    }
    if url is not None:
        checks["stream"] = partial(network.check_url, url, within_s)
        if write:
            checks["broker clock"] = partial(network.check_skew, url, within_s)
    return checks


def _folder_of(url: str | None) -> Path | None:
    try:
        where = parse_url(url) if url is not None else None
    except UrlError:
        return None  # the check of the stream reports it
    return where.folder if isinstance(where, LogUrl) else None


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = typer.style(_MARKS[finding.level], fg=_COLOURS[finding.level])
        typer.echo(f"{mark}  {finding.what:<{width}}  {finding.text}")
        if finding.fix is not None:
            typer.echo(f"{'':<{width + 8}}-> {finding.fix}")
