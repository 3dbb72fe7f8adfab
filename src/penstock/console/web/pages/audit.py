"""The audit log: every change that somebody made, or tried to make, through this console."""

from __future__ import annotations

import json
from typing import Final

from nicegui import ui

from penstock.console.views import AuditLine
from penstock.console.web import parts
from penstock.console.web.chosen import Chosen
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.pages.looks import Trouble, until_closed, wear_details

EVERY_S: Final = 5.0
_NEWEST: Final = 1_000
_ANY: Final = "Any"
_COLUMNS: Final = (
    parts.Column("at", "Time (UTC)"),
    parts.Column("who", "Who", "mono"),
    parts.Column("address", "From", "mono", on_phone=False),
    parts.Column("action", "Action", "mono"),
    parts.Column("outcome", "Outcome", "badge"),
    parts.Column("parameters", "What", "wide", on_phone=False),
    parts.Column("text", "Came of it", "wide", on_phone=False),
)
_TONES: Final[dict[str, parts.Tone]] = {"done": "good", "failed": "bad", "under way": "info", "unknown": "warn"}


def register(console: Console) -> None:
    @ui.page("/audit")
    async def audit_page() -> None:
        wear_details()
        with frame(console, "Audit", "audit"):
            parts.title("Audit", "Every change made through this console, and every one that failed.")
            await _Audit(console).draw()


class _Audit:
    """The table of changes on one open page."""

    def __init__(self, console: Console) -> None:
        self._service = console.service
        self._lines: list[AuditLine] = []

    async def draw(self) -> None:
        chosen = Chosen("/audit")
        with parts.toolbar():
            text = parts.filter_field(chosen)
            outcome = chosen.asked("outcome", _ANY, [_ANY, *_TONES])
            self._outcome = parts.field(ui.select([_ANY, *_TONES], value=outcome, label="Outcome"), width="10rem")
        self._trouble = Trouble()
        with parts.panel() as self._nothing:
            parts.empty(
                "Nothing has been changed through this console.",
                "It is read-only."
                if self._service.read_only
                else "What is done here is noted: by whom, when, with what.",
            )
        with parts.panel() as self._panel:
            self._table = parts.table(
                _COLUMNS, (), height="calc(100vh - 12.5rem)", sort_by="at", is_descending=True, on_click=self._open
            )
        parts.filtering(text, self._table, chosen)
        self._outcome.on_value_change(lambda event: chosen.keep(outcome="" if event.value == _ANY else event.value))
        self._outcome.on_value_change(self._show)
        await self._update()
        live(self._update, every_s=EVERY_S)

    async def _update(self) -> None:
        with self._trouble.told():
            self._lines = list(await parts.in_background(self._service.audit, _NEWEST))
            self._show()

    def _show(self) -> None:
        self._table.show([_row(each) for each in self._lines if self._outcome.value in (_ANY, each.outcome)])
        self._panel.set_visibility(bool(self._lines))
        self._nothing.set_visibility(not self._lines)

    async def _open(self, row: parts.Row) -> None:
        line = next((each for each in self._lines if each.id == row.get("id")), None)
        if line is not None:
            await _show_line(line)


async def _show_line(line: AuditLine) -> None:
    took = None if line.ended_ms is None else (line.ended_ms - line.at_ms) / 1000
    with ui.dialog() as dialog, ui.card().classes("dialog"):
        parts.heading("h2", line.action)
        parts.badge(line.outcome, _TONES.get(line.outcome, "plain"))
        parts.facts(
            [
                ("Time", f"{parts.time_text(line.at_ms)} UTC"),
                ("Took", parts.duration_text(took)),
                ("Who", line.who),
                ("From", line.address),
                *((name, _text(value)) for name, value in line.parameters.items()),
                ("Came of it", line.text),
            ]
        )
        with ui.element("div").classes("dialog-buttons"):
            parts.button("Close", dialog.close, kind="quiet")
    await until_closed(dialog)


def _row(line: AuditLine) -> parts.Row:
    return {
        "id": line.id,
        "at": line.at_ms,
        "at_text": parts.time_text(line.at_ms),
        "who": line.who,
        "address": line.address,
        "action": line.action,
        "outcome": line.outcome,
        "outcome_tone": _TONES.get(line.outcome, "plain"),
        "parameters": ", ".join(f"{name}={_text(value)}" for name, value in line.parameters.items()),
        "text": line.text,
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
