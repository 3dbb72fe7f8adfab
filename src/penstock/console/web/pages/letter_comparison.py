"""Two dead letters side by side: what differs between a record that failed and another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nicegui import ui

from penstock.console.views import Difference, LetterDetail
from penstock.console.web import parts
from penstock.console.web.pages.letter_detail import place_text
from penstock.console.web.pages.looks import until_closed
from penstock.console.web.pages.side_by_side import only_near_differences, side_by_side

_MOST_FIELDS: Final = 100
_MOST_LINES: Final = 300


async def show_comparison(left: LetterDetail, right: LetterDetail, differences: Sequence[Difference]) -> None:
    """Open both in a dialog, until that is closed."""
    with ui.dialog() as dialog, ui.card().classes("dialog dialog-widest"):
        parts.heading("h2", "Compare two letters")
        with ui.element("div").classes("versus versus-head"):
            ui.label("")
            ui.label(place_text(left.row))
            ui.label(place_text(right.row))
        _draw_differences(differences)
        _draw_lines("Value", left.row.value.text, right.row.value.text)
        _draw_lines("Traceback", left.traceback, right.traceback)
        with ui.element("div").classes("dialog-buttons"):
            parts.button("Close", dialog.close, kind="quiet")
    await until_closed(dialog)


def _draw_differences(differences: Sequence[Difference]) -> None:
    """What differs, field by field; inside of a value, too, where it is JSON."""
    with ui.element("div").classes("versus"):
        for each in differences[:_MOST_FIELDS]:
            ui.label(each.path).classes("versus-path")
            for side, text in (("left", each.left), ("right", each.right)):
                ui.label("not there" if text is None else text).classes(
                    "versus-line about" if text is None else f"versus-line versus-{side}"
                )
    if len(differences) > _MOST_FIELDS:
        ui.label(f"and {parts.count_text(len(differences) - _MOST_FIELDS, 'more field')}").classes("about")


def _draw_lines(name: str, left: str, right: str) -> None:
    """Two texts beside each other, with the lines around what differs."""
    pairs = side_by_side(left, right)
    differing = sum(pair.differs for pair in pairs)
    with ui.element("div").classes("versus-aspect"):
        parts.heading("h3", name)
        ui.label(_differing(differing)).classes("about")
    if not differing:
        return
    with ui.element("div").classes("versus versus-lines"):
        for pair in list(only_near_differences(pairs))[:_MOST_LINES]:
            if pair is None:
                ui.label("⋯").classes("versus-same about")
                continue
            for side, text in (("left", pair.left), ("right", pair.right)):
                ui.label(text or "").classes(f"versus-line versus-{side}" if pair.differs else "versus-line")


def _differing(lines: int) -> str:
    if not lines:
        return "the same"
    return "1 line differs" if lines == 1 else f"{parts.number_text(lines)} lines differ"
