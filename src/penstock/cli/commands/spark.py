"""`penstock spark`: what pipelines need besides the Python packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import examples
from penstock.cli.output import say, size_text
from penstock.cli.tables import at_work
from penstock.errors import ConfigError, ConnectorMissingError, PipelineError
from penstock.model.text import count_text

app = typer.Typer(
    name="spark",
    rich_markup_mode=None,
    help="Fetch what Spark pipelines need besides the Python packages, and make them start faster.",
    no_args_is_help=True,
)


@app.command("jars", epilog=examples("penstock spark jars", "penstock spark jars --where"))
def jars(
    force: Annotated[bool, typer.Option("--force", help="Fetch them again.")] = False,
    where: Annotated[bool, typer.Option("--where", help="Only print the existing ones.")] = False,
) -> None:
    """Fetch Spark's Kafka connector, once: with Maven if it is installed, else with Spark's own resolver.

    Prints the paths of the jars, one per line; progress goes to standard error. They are kept in $PENSTOCK_CACHE, by
    default penstock's folder in the user's cache.
    """
    from penstock.spark.sessions.jars import connector_folder, connector_jars, fetch_connector

    if where:
        if force:
            raise ConfigError("--where and --force exclude each other")
        if not connector_jars():
            raise ConnectorMissingError(
                f"Spark's Kafka connector is not in {connector_folder()}: run `penstock spark jars` once"
            )
        fetched = connector_jars()
    elif connector_jars() and not force:
        fetched = connector_jars()
        say(f"Spark's Kafka connector exists already; --force fetches it again ({_sizes(fetched)})")
    else:
        with at_work("fetching Spark's Kafka connector") as tell:
            fetched = fetch_connector(force=force, tell=tell)
    for jar in fetched:
        typer.echo(str(jar))


@app.command("archive", epilog=examples("penstock spark archive", "penstock spark archive --where"))
def archive(
    force: Annotated[bool, typer.Option("--force", help="Create it again.")] = False,
    where: Annotated[bool, typer.Option("--where", help="Only print the existing one.")] = False,
) -> None:
    """Create an archive of Spark's loaded classes (Java's CDS), so that sessions start in about half the time.

    It takes about a minute, and some 200 MB in $PENSTOCK_CACHE. It is valid for the current Java, Spark and Kafka
    connector: create it again when one of them changes. Prints its path.
    """
    from penstock.spark.sessions.class_archive import current_archive, make

    there = current_archive()
    if where:
        if force:
            raise ConfigError("--where and --force exclude each other")
        if there is None:
            raise PipelineError(
                "there is no archive of Spark's classes for this Java, Spark and connector: run `penstock spark "
                "archive` once"
            )
    elif there is not None and not force:
        say(f"the archive exists already; --force creates it again ({size_text(there.stat().st_size)})")
    else:
        with at_work("archiving Spark's classes") as tell:
            there = make(force=force, tell=tell)
    typer.echo(str(there))


def _sizes(files: tuple[Path, ...]) -> str:
    return f"{count_text(len(files), 'jar')}, {size_text(sum(file.stat().st_size for file in files))}"
