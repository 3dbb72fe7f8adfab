"""The root of the command, and what happens to errors."""

from __future__ import annotations

import sys

import typer

from penstock.cli import serve
from penstock.errors import PenstockError

app = typer.Typer(name="penstock", no_args_is_help=True, pretty_exceptions_enable=False, add_completion=True)
app.command("serve")(serve.serve)


@app.callback()
def root() -> None:
    """Carry events: produce, keep, consume."""


def main() -> None:
    try:
        app()
    except PenstockError as error:
        typer.echo(f"penstock: {error}", err=True)
        sys.exit(1)
