"""Two dead letters side by side."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from nicegui import ui

from penstock.console.comparing import MOST
from penstock.console.views import Difference, LetterDetail, LetterRow
from penstock.console.web import parts, tables, texts
from penstock.console.web.background import in_background
from penstock.console.web.pages.consumers import draw_timeline
from penstock.model import LetterState
from penstock.model.letter import is_of_query
from penstock.model.pointer_forms import PointerText

STATE_TONES: dict[LetterState, tables.Tone] = {
    LetterState.WAITING: "warn",
    LetterState.TAKEN: "info",
    LetterState.REDRIVEN: "good",
    LetterState.DISCARDED: "plain",
}


def place_text(row: LetterRow) -> str:
    """The place of its record: orders-3 @ 1201. For the row of a query: query shop.spend, batch 17."""
    if is_of_query(row.topic):
        return f"{row.topic}, batch {row.pointer_text}"
    return f"{row.topic}-{row.partition} @ {row.pointer_text}"


async def show_letter(detail: LetterDetail, download: str, pointer_text: PointerText) -> None:
    """Show it in a drawer, until it is closed. `download` is the address of its key and value as files."""
    with ui.dialog().props('position=right maximized aria-label="Dead letter"') as dialog, ui.card().classes("drawer"):
        with ui.element("div").classes("drawer-head"):
            parts.heading("h1", place_text(detail.row))
            parts.badge(str(detail.row.state), STATE_TONES[detail.row.state])
            ui.element("span").classes("spread")
            parts.button("", dialog.close, kind="quiet", icon="close").props('aria-label="Close"')
        draw_letter(detail, download, pointer_text)
    await parts.until_closed(dialog)


def draw_letter(detail: LetterDetail, download: str, pointer_text: PointerText) -> None:
    row = detail.row
    with ui.element("div").classes("notice-inline tone-bad"):
        parts.label(row.error)
    parts.facts(
        [
            ("Group", row.group),
            ("Handler", f"{row.handler} {detail.handler_version}".strip()),
            ("Attempts", texts.number_text(row.attempts)),
            ("First tried", f"{texts.time_text(row.first_ms)} UTC"),
            ("Given up", f"{texts.time_text(row.last_ms)} UTC, {texts.ago_text(row.last_ms)}"),
            ("Timestamp", texts.time_text(row.timestamp_ms)),
            ("Redriven", {0: "never", 1: "once"}.get(row.redrives, f"{row.redrives} times")),
            ("Letter", row.id),
        ]
    )
    in_topic = texts.path_to("topics", row.topic, partition=str(row.partition), pointer=str(row.pointer))
    with parts.toolbar():
        parts.downloads(download, row.value, row.key)
        if not is_of_query(row.topic):
            ui.link("The record in its topic", in_topic).classes("link")
    parts.heading("h3", f"Key ({row.key.form})")
    parts.shown(row.key, is_block=True)
    parts.heading("h3", f"Value ({row.value.form}, {texts.size_text(row.value.size_bytes)})")
    parts.shown(row.value, is_block=True)
    if detail.headers:
        parts.heading("h3", "Headers")
        parts.headers(detail.headers)
    if detail.traceback:
        with ui.expansion("Traceback").classes("expansion").props("dense"), ui.element("pre").classes("shown"):
            parts.label(detail.traceback)
    if detail.history:
        parts.heading("h3", "What happened")
        with ui.element("div").classes("timeline"):
            draw_timeline(detail.history, pointer_text)


LONGEST_LINES: Final = 2_000
"""The time of a comparison grows with the square of the lines; of longer texts the beginning is compared."""
_LONGEST_LINE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A line of each side; None where one side has none."""

    left: str | None
    right: str | None

    @property
    def differs(self) -> bool:
        return self.left != self.right


def side_by_side(left: str, right: str) -> list[Pair]:
    """The lines of both, equal ones beside each other."""
    lefts, rights = _lines(left), _lines(right)
    matcher = difflib.SequenceMatcher(None, lefts, rights, autojunk=False)
    return [
        pair
        for _, left_from, left_to, right_from, right_to in matcher.get_opcodes()
        for pair in _paired(lefts[left_from:left_to], rights[right_from:right_to])
    ]


def is_cut(text: str) -> bool:
    """Whether only the beginning of this text, or of one of its lines, is compared."""
    lines = text.splitlines()
    return len(lines) > LONGEST_LINES or any(len(line) > _LONGEST_LINE for line in lines[:LONGEST_LINES])


def only_near_differences(pairs: Sequence[Pair], around: int = 3) -> Iterator[Pair | None]:
    """The differing pairs with a few around them; None where equal ones were omitted."""
    near = {index + offset for index, pair in enumerate(pairs) if pair.differs for offset in range(-around, around + 1)}
    was_left_out = False
    for index, pair in enumerate(pairs):
        if index in near:
            was_left_out = False
            yield pair
        elif not was_left_out:
            was_left_out = True
            yield None


def _paired(lefts: Sequence[str], rights: Sequence[str]) -> Iterator[Pair]:
    for left, right in zip_longest(lefts, rights):
        yield Pair(left, right)


def _lines(text: str) -> list[str]:
    return [line[:_LONGEST_LINE] for line in text.splitlines()[:LONGEST_LINES]]


_MOST_FIELDS: Final = 100
_MOST_LINES: Final = 300


async def show_comparison(left: LetterDetail, right: LetterDetail, differences: Sequence[Difference]) -> None:
    """Show both in a dialog, until it is closed."""
    left_value, right_value = left.row.value, right.row.value
    values = await in_background(side_by_side, left_value.text, right_value.text)
    traces = await in_background(side_by_side, left.traceback, right.traceback)
    with parts.drawn_dialog("Compare two letters", "dialog-widest") as dialog:
        with ui.element("div").classes("versus versus-head"):
            parts.label("")
            parts.label(place_text(left.row))
            parts.label(place_text(right.row))
        _draw_differences(differences)
        is_part = left_value.is_cut or right_value.is_cut or is_cut(left_value.text) or is_cut(right_value.text)
        _draw_lines("Value", values, is_part)
        _draw_lines("Traceback", traces, is_cut(left.traceback) or is_cut(right.traceback))
        parts.dialog_buttons(dialog, "Close")
    await parts.until_closed(dialog)


def _draw_differences(differences: Sequence[Difference]) -> None:
    """The differences, field by field, also inside JSON values."""
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
        parts.label(f"and {texts.number_text(more)}{or_more} further fields").classes("about")


def _draw_lines(name: str, pairs: Sequence[Pair], is_part: bool) -> None:
    """Two texts side by side, with the lines around the differences. `is_part`: they were cut."""
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
        parts.label(f"and {texts.number_text(len(shown) - _MOST_LINES)} further lines").classes("about")


def _differing(lines: int, is_part: bool) -> str:
    told = "1 line differs" if lines == 1 else f"{texts.number_text(lines)} lines differ" if lines else "the same"
    return f"{told}, as far as was compared: they are long" if is_part else told
