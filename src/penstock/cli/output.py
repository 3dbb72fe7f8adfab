"""What commands print: JSON for programs, messages for people, and the format of sizes and times."""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from pathlib import Path
from typing import Final

import msgspec
import typer

from penstock.model.text import printable

_STEP: Final = 1024
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")


def print_json(value: object, *, indent: bool = True) -> None:
    """One JSON document; on one line without `indent`."""
    encoded = msgspec.json.encode(value)
    text = msgspec.json.format(encoded, indent=2) if indent else encoded
    typer.echo("\n".join(map(plain_json, text.decode().split("\n"))))


def plain_json(line: str) -> str:
    """A line of JSON without invisible characters. JSON need not escape all of them, and terminals interpret some."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def say(text: str) -> None:
    """Print a message for people on standard error."""
    typer.echo("\n".join(map(printable, text.split("\n"))), err=True)


def report(document: object, text: str, *, as_json: bool) -> None:
    """Report what a command has done: as JSON for programs, or in a sentence for people."""
    if as_json:
        print_json(document)
    else:
        say(text)


def confirm(question: str, otherwise: str) -> None:
    """Continue only after a confirmation; else say `otherwise` and exit with 1."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("not a terminal: pass --yes", param_hint="--yes")
    if not typer.confirm(question, err=True):
        say(otherwise)
        raise typer.Exit(1)


def print_traceback(error: BaseException, file: Path) -> None:
    """Print the traceback of a user's program, from the first line of `file` on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(file):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


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
    """2026-11-15T08:00:00.250Z; the plain number outside of the calendar's range."""
    if timestamp_ms is None:
        return "-"
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"@{timestamp_ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
