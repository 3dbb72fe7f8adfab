"""Two dead letters side by side: what differs between a record that failed and another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nicegui import ui

from penstock.console.comparing import MOST
from penstock.console.views import Difference, LetterDetail
from penstock.console.web import parts
from penstock.console.web.pages.letter_detail import place_text
from penstock.console.web.pages.looks import until_closed
from penstock.console.web.pages.side_by_side import Pair, is_cut, only_near_differences, side_by_side

_MOST_FIELDS: Final = 100
_MOST_LINES: Final = 300


async def show_comparison(left: LetterDetail, right: LetterDetail, differences: Sequence[Difference]) -> None:
    """Open both in a dialog, until that is closed."""
    left_value, right_value = left.row.value, right.row.value
    values = await parts.in_background(side_by_side, left_value.text, right_value.text)
    traces = await parts.in_background(side_by_side, left.traceback, right.traceback)
    with ui.dialog() as dialog, ui.card().classes("dialog dialog-widest"):
        parts.heading("h2", "Compare two letters")
        with ui.element("div").classes("versus versus-head"):
            parts.label("")
            parts.label(place_text(left.row))
            parts.label(place_text(right.row))
        _draw_differences(differences)
        is_part = left_value.is_cut or right_value.is_cut or is_cut(left_value.text) or is_cut(right_value.text)
        _draw_lines("Value", values, is_part)
        _draw_lines("Traceback", traces, is_cut(left.traceback) or is_cut(right.traceback))
        with ui.element("div").classes("dialog-buttons"):
            parts.button("Close", dialog.close, kind="quiet")
    await until_closed(dialog)


def _draw_differences(differences: Sequence[Difference]) -> None:
    """What differs, field by field; inside of a value, too, where it is JSON."""
    with ui.element("div").classes("versus"):
        for each in differences[:_MOST_FIELDS]:
            parts.label(each.path).classes("versus-path")
            for side, text in (("left", each.left), ("right", each.right)):
                parts.label("not there" if text is None else text).classes(
                    "versus-line about" if text is None else f"versus-line versus-{side}"
                )
    more = len(differences) - _MOST_FIELDS
    if more > 0:
        or_more = " or more" if len(differences) == MOST else ""
        parts.label(f"and {parts.number_text(more)}{or_more} further fields").classes("about")


def _draw_lines(name: str, pairs: Sequence[Pair], is_part: bool) -> None:
    """Two texts beside each other, with the lines around what differs. `is_part`: they are not all there is."""
    differing = sum(pair.differs for pair in pairs)
    with ui.element("div").classes("versus-aspect"):
        parts.heading("h3", name)
        parts.label(_differing(differing, is_part)).classes("about")
    if not differing:
        return
    shown = list(only_near_differences(pairs))
    with ui.element("div").classes("versus versus-lines"):
        for pair in shown[:_MOST_LINES]:
            if pair is None:
                parts.label("⋯").classes("versus-same about")
                continue
            for side, text in (("left", pair.left), ("right", pair.right)):
                parts.label(text or "").classes(f"versus-line versus-{side}" if pair.differs else "versus-line")

    if len(shown) > _MOST_LINES:
        parts.label(f"and {parts.number_text(len(shown) - _MOST_LINES)} further lines").classes("about")


def _differing(lines: int, is_part: bool) -> str:
    told = "1 line differs" if lines == 1 else f"{parts.number_text(lines)} lines differ" if lines else "the same"
    return f"{told}, as far as was compared: they are long" if is_part else told
