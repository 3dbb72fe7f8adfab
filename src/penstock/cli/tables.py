"""Tables on standard output, and progress on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import say
from penstock.model.text import printable


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> None:
    """Print a table as wide as the terminal; into a file or pipe it is not truncated.

    `numbers` are the right-aligned columns.
    """
    is_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold" if is_terminal else "")
    right = set(numbers)
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=not is_terminal
        )
    for row in rows:
        table.add_row(*("-" if cell is None else printable(str(cell)) for cell in row))
    console = Console(markup=False, highlight=False, emoji=False, width=None if is_terminal else 10_000)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


@contextmanager
def at_work(doing: str) -> Iterator[Callable[[str], None]]:
    """Progress on a terminal; yields a function that reports steps."""
    if not sys.stderr.isatty():
        yield say
        return
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with console.status(doing):
        yield console.print
