"""`penstock spark`: what pipelines need beside the Python packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import count_text, say, size_text
from penstock.cli.stream import examples

app = typer.Typer(
    rich_markup_mode=None,
    help="Fetch what pipelines on Spark need beside the Python packages, and have them start sooner.",
    no_args_is_help=True,
)


@app.command("jars", epilog=examples("penstock spark jars", "penstock spark jars --where"))
def jars(
    force: Annotated[bool, typer.Option("--force", help="Fetch them again, even if they are there.")] = False,
    where: Annotated[bool, typer.Option("--where", help="Only print which are there; fetch nothing.")] = False,
) -> None:
    """Fetch Spark's Kafka connector, once: with Maven if it is installed, else with Spark's own resolver.

    The paths of the jars go to the output, one a line; what is being done is told beside it. $PENSTOCK_CACHE names the
    folder that they are kept in, by default penstock's among the user's caches.
    """
    from penstock.errors import ConfigError, ConnectorMissingError
    from penstock.spark.jars import connector_folder, connector_jars, fetch_connector

    if where:
        if force:
            raise ConfigError("--where fetches nothing, and --force fetches again: name one of them")
        if not connector_jars():
            raise ConnectorMissingError(
                f"Spark's Kafka connector is not in {connector_folder()}: run `penstock spark jars` once"
            )
        fetched = connector_jars()
    elif connector_jars() and not force:
        fetched = connector_jars()
        say(f"Spark's Kafka connector is there already; --force fetches it again ({_sizes(fetched)})")
    else:
        with _at_work("fetching Spark's Kafka connector") as tell:
            fetched = fetch_connector(force=force, tell=tell)
    for jar in fetched:
        typer.echo(str(jar))


@app.command("archive", epilog=examples("penstock spark archive", "penstock spark archive --where"))
def archive(
    force: Annotated[bool, typer.Option("--force", help="Make it again, even if it is there.")] = False,
    where: Annotated[bool, typer.Option("--where", help="Only print which is there; make none.")] = False,
) -> None:
    """Keep Spark's classes as Java has them in memory, once, so that sessions start in about half the time.

    It takes about a minute, and some 200 MB in $PENSTOCK_CACHE. It counts for the Java, the Spark and the Kafka
    connector that are there now: make it again when one of them changes. Its path goes to the output.
    """
    from penstock.errors import ConfigError, PipelineError
    from penstock.spark.class_archive import current_archive, make

    there = current_archive()
    if where:
        if force:
            raise ConfigError("--where makes nothing, and --force makes it again: name one of them")
        if there is None:
            raise PipelineError(
                "there is no archive of Spark's classes for this Java, Spark and connector: run `penstock spark "
                "archive` once"
            )
    elif there is not None and not force:
        say(f"the archive is there already; --force makes it again ({size_text(there.stat().st_size)})")
    else:
        with _at_work("keeping Spark's classes") as tell:
            there = make(force=force, tell=tell)
    typer.echo(str(there))


@contextmanager
def _at_work(doing: str) -> Iterator[Callable[[str], None]]:
    """Something to look at on a terminal while it takes its time; gives what to tell the steps with."""
    if not sys.stderr.isatty():
        yield say
        return
    from rich.console import Console

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with console.status(doing):
        yield console.print


def _sizes(files: tuple[Path, ...]) -> str:
    return f"{count_text(len(files), 'jar')}, {size_text(sum(file.stat().st_size for file in files))}"
