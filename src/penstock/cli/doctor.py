"""`penstock doctor`: what of this machine would keep Penstock from working, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.output import print_json, say
from penstock.cli.quantities import seconds
from penstock.cli.stream import AsJson, examples, hush

if TYPE_CHECKING:
    from penstock.cli.checks.examining import Check
    from penstock.cli.checks.finding import Finding

EXAMPLES: Final = examples(
    "penstock doctor",
    "penstock doctor --url kafka://broker.example:9092",
    "penstock doctor --url log:./data --write --within 30s --json",
)
_MARKS: Final = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
_GRACE_S: Final = 0.5
"""For what has used up its time to say so."""


def doctor(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="PENSTOCK_URL", metavar="URL", help="A stream to ask, too: kafka://HOST:PORT or log:FOLDER."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for the log. Else that of a log: URL, or ./data.")
    ] = None,
    write: Annotated[
        bool,
        typer.Option("--write", help="Compare clocks with the stream: makes a topic with one record, and deletes it."),
    ] = False,
    within: Annotated[str, typer.Option(metavar="TIME", help="Time for all checks. More time tries more.")] = "2s",
    as_json: AsJson = False,
) -> None:
    """Check Python, Java, extras, ports, disk, clock, file handles and memory, and say what to fix.

    Exits with 1 if something does not work; what only might not is a warning.
    """
    from penstock.cli.checks.examining import examine

    hush()
    within_s = seconds(within, "--within")
    if within_s <= 0:
        raise typer.BadParameter("give the checks some time, such as 3s", param_hint="--within")
    if write and url is None:
        raise typer.BadParameter("name the stream to write to with --url", param_hint="--write")
    findings = examine(_checks(url, data, write, within_s), within_s + _GRACE_S)
    failures = sum(finding.level == "fail" for finding in findings)
    if as_json:
        print_json(findings)
    else:
        _show(findings)
        warnings = sum(finding.level == "warn" for finding in findings)
        say(f"{len(findings)} findings: {failures} to fix, {warnings} to know of.")
    if failures:
        raise typer.Exit(1)


def _checks(url: str | None, data: Path | None, write: bool, within_s: float) -> dict[str, Check]:
    from penstock.cli.checks import data_folder, extras, java, machine, network

    with_spark = extras.installed_version("pyspark") is not None
    checks: dict[str, Check] = {
        "python": machine.check_python,
        "extras": partial(extras.check_extras, within_s),
        "java": java.check_java,
        "spark connector": java.check_connector,
        "spark archive": java.check_archive,
        "memory": partial(machine.check_memory, with_spark),
        "file handles": machine.check_handles,
        "data folder": partial(data_folder.check_data_folder, data or _folder_of(url) or Path("data")),
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
    from penstock.errors import UrlError
    from penstock.streams.url import LogUrl, parse_url

    try:
        where = parse_url(url) if url is not None else None
    except UrlError:
        return None  # the check of the stream says what is wrong with it
    return where.folder if isinstance(where, LogUrl) else None


def _show(findings: Sequence[Finding]) -> None:
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        mark = typer.style(_MARKS[finding.level], fg=_COLOURS[finding.level])
        typer.echo(f"{mark}  {finding.what:<{width}}  {finding.text}")
        if finding.fix is not None:
            typer.echo(f"{'':<{width + 8}}-> {finding.fix}")
