"""One dead letter, whole: the record, the error with its traceback, and what happened to it."""

from __future__ import annotations

from nicegui import ui

from penstock.console.views import LetterDetail, LetterRow
from penstock.console.web import parts
from penstock.console.web.pages.looks import until_closed
from penstock.console.web.pages.record_history import draw_timeline
from penstock.model import LetterState

STATE_TONES: dict[LetterState, parts.Tone] = {
    LetterState.WAITING: "warn",
    LetterState.TAKEN: "info",
    LetterState.REDRIVEN: "good",
    LetterState.DISCARDED: "plain",
}


def place_text(row: LetterRow) -> str:
    """Where its record stood: orders-3 @ 1201."""
    return f"{row.topic}-{row.partition} @ {row.pointer}"


async def show_letter(detail: LetterDetail, download: str) -> None:
    """Open it in a drawer, until that is closed. `download` is the address of its key and value as files."""
    with ui.dialog().props('position=right maximized aria-label="Dead letter"') as dialog, ui.card().classes("drawer"):
        with ui.element("div").classes("drawer-head"):
            parts.heading("h1", place_text(detail.row))
            parts.badge(str(detail.row.state), STATE_TONES[detail.row.state])
            ui.element("span").classes("spread")
            parts.button("", dialog.close, kind="quiet", icon="close").props('aria-label="Close"')
        draw_letter(detail, download)
    await until_closed(dialog)


def draw_letter(detail: LetterDetail, download: str) -> None:
    row = detail.row
    with ui.element("div").classes("notice-inline tone-bad"):
        parts.label(row.error)
    parts.facts(
        [
            ("Group", row.group),
            ("Handler", f"{row.handler} {detail.handler_version}".strip()),
            ("Attempts", parts.number_text(row.attempts)),
            ("First tried", f"{parts.time_text(row.first_ms)} UTC"),
            ("Given up", f"{parts.time_text(row.last_ms)} UTC, {parts.ago_text(row.last_ms)}"),
            ("Timestamp", parts.time_text(row.timestamp_ms)),
            ("Redriven", {0: "never", 1: "once"}.get(row.redrives, f"{row.redrives} times")),
            ("Letter", row.id),
        ]
    )
    in_topic = parts.path_to("topics", row.topic, partition=str(row.partition), pointer=str(row.pointer))
    with parts.toolbar():
        for which, shown in (("value", row.value), ("key", row.key)):
            if shown.size_bytes:
                with ui.element("a").classes("button button-link").props(f'href="{download}/{which}" download'):
                    parts.label(f"Download {which}")
        ui.link("The record in its topic", in_topic).classes("link")
    parts.heading("h3", f"Key ({row.key.form})")
    parts.shown(row.key, is_block=True)
    parts.heading("h3", f"Value ({row.value.form}, {parts.size_text(row.value.size_bytes)})")
    parts.shown(row.value, is_block=True)
    if detail.headers:
        parts.heading("h3", "Headers")
        with ui.element("dl").classes("facts"):
            for name, value in detail.headers:
                with ui.element("dt"):
                    parts.label(name)
                with ui.element("dd"):
                    parts.shown(value)
    if detail.traceback:
        with ui.expansion("Traceback").classes("expansion").props("dense"), ui.element("pre").classes("shown"):
            parts.label(detail.traceback)
    if detail.happenings:
        parts.heading("h3", "What happened")
        with ui.element("div").classes("timeline"):
            draw_timeline(detail.happenings)
