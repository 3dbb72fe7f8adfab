"""What commands print: tables for people, JSON for programs, and how sizes and times are written."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import typer

_STEP: Final = 1024
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def print_json(value: object) -> None:
    """One JSON document."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Iterable[str] = ()) -> None:
    """A table, as wide as the terminal; not cut when it goes to a file or to another program.

    `numbers` are the columns that stand to the right.
    """
    from rich.console import Console
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold" if is_terminal else "")
    right = set(numbers)
    for column in columns:
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=not is_terminal
        )
    for row in rows:
        table.add_row(*("-" if cell is None else str(cell) for cell in row))
    console = Console(markup=False, highlight=False, emoji=False, width=None if is_terminal else 10_000)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        typer.echo(line.rstrip())


def say(text: str) -> None:
    """Something for people, beside the output."""
    typer.echo(text, err=True)


def size_text(size_bytes: int | None) -> str:
    """12 B, 3.4 KB, 1.0 GB."""
    if size_bytes is None:
        return "-"
    size = float(size_bytes)
    for unit in _UNITS:
        if size < _STEP or unit == _UNITS[-1]:
            break
        size /= _STEP
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def time_text(timestamp_ms: int | None) -> str:
    """2026-11-15T08:00:00.250Z; the plain number where no calendar reaches."""
    if timestamp_ms is None:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def count_text(count: int, thing: str) -> str:
    """1 record, 2,000 records."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
