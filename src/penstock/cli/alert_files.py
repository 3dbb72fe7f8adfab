"""Which file of rules a command means, and how rules are shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.observe.alerts import Rule
    from penstock.observe.alerts.book import BookFile

RulesFile = Annotated[
    Path | None,
    typer.Option(
        envvar="PENSTOCK_ALERTS",
        metavar="FILE",
        help="The file of rules. Else the one that the console of this stream uses.",
        show_default=False,
    ),
]


def book_file(path: Path | None, url: str) -> BookFile:
    from penstock.observe.alerts.book import BookFile
    from penstock.observe.alerts.place import rules_path

    return BookFile(path if path is not None else rules_path(url))


def shown_rule(rule: Rule) -> tuple[str, str | None]:
    """When it fires, and for how long it must be so: `lag_s >= 5 min, of billing`."""
    from penstock.observe.alerts.wording import duration_text, number_text

    if rule.kind.unit == "s":
        amount = duration_text(rule.threshold)
    else:
        amount = f"{number_text(rule.threshold)} {rule.kind.unit}"
    text = f"{rule.kind} {'<=' if rule.kind.is_worse_when_lower else '>='} {amount}"
    if rule.match != "*":
        text += f", of {rule.match}"
    if rule.unless:
        text += f", unless {rule.unless}"
    return text, duration_text(rule.for_s) if rule.for_s else None
