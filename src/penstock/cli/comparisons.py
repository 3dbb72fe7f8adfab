"""Printing the comparison of two versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli.tables import print_table

if TYPE_CHECKING:
    from penstock.spark.versions.comparing import Comparison

_LONGEST: Final = 60
_KINDS: Final = {"only_old": "only old", "only_new": "only new", "different": "different"}


def print_comparisons(old: str, new: str, comparisons: Mapping[str, Comparison]) -> None:
    """Print a line for each name, and a few examples of differences."""
    typer.echo(f"Old: {old}. New: {new}.")
    columns = ["name", "by", "same", "only old", "only new", "different"]
    rows = [
        (name, each.by, each.same, each.only_old, each.only_new, each.different if each.by == "key" else None)
        for name, each in comparisons.items()
    ]
    print_table(columns, rows, numbers=columns[2:])
    examples = [
        (name, _KINDS[example.kind], _text(example.key), _text(example.old), _text(example.new))
        for name, each in comparisons.items()
        for example in each.examples
    ]
    if examples:
        typer.echo("")
        print_table(["name", "for example", "key", "old", "new"], examples)


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    text = data.decode(errors="backslashreplace")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
