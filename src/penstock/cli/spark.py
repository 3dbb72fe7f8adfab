"""`penstock spark`: what pipelines need beside the Python packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import count_text, say, size_text
from penstock.cli.stream import examples

app = typer.Typer(
    rich_markup_mode=None,
    help="Fetch what pipelines on Spark need beside the Python packages.",
    no_args_is_help=True,
)


@app.callback()
def spark() -> None:
    """Without it typer would take the only command for the noun itself."""


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
    elif sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True, markup=False, highlight=False, emoji=False)
        with console.status("fetching Spark's Kafka connector"):
            fetched = fetch_connector(force=force, tell=console.print)
    else:
        fetched = fetch_connector(force=force, tell=say)
    for jar in fetched:
        typer.echo(str(jar))


def _sizes(files: tuple[Path, ...]) -> str:
    return f"{count_text(len(files), 'jar')}, {size_text(sum(file.stat().st_size for file in files))}"
