"""The audit log: every change that was made, or attempted, through this console."""

from __future__ import annotations

import json
from typing import Final

from nicegui import ui

from penstock.console.views import AuditLine
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import from_disk
from penstock.console.web.frame import Console, frame, live
from penstock.console.web.parts import PageChoices

EVERY_S: Final = 5.0
_NEWEST: Final = 1_000
_ANY: Final = "Any"
_COLUMNS: Final = (
    tables.Column("at", "Time (UTC)", text=texts.time_text),
    tables.Column("who", "Who", "mono"),
    tables.Column("address", "From", "mono", on_phone=False),
    tables.Column("action", "Action", "mono"),
    tables.Column("outcome", "Outcome", "badge"),
    tables.Column("parameters", "What", "wide", on_phone=False),
    tables.Column("text", "Result", "wide", on_phone=False),
)
_TONES: Final[dict[str, tables.Tone]] = {"done": "good", "failed": "bad", "under way": "info", "unknown": "warn"}


def register(console: Console) -> None:
    @ui.page("/audit")
    async def audit_page() -> None:
        with frame(console, "Audit", "audit"):
            parts.title("Audit", "Every change made through this console, and every one that failed.")
            await _Audit(console).draw()


class _Audit:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._lines: list[AuditLine] = []

    async def draw(self) -> None:
        chosen = PageChoices("/audit")
        with parts.toolbar():
            text = parts.filter_field(chosen)
            outcome = chosen.asked("outcome", _ANY, [_ANY, *_TONES])
            self._outcome = parts.field(ui.select([_ANY, *_TONES], value=outcome, label="Outcome"), width="10rem")
        self._trouble = parts.Problem()
        recorded = "Each change is recorded: who made it, when, and its parameters."
        hint = "It is read-only." if self._service.read_only else recorded
        self._listing = Listing(
            self._console,
            _COLUMNS,
            ("Nothing has been changed through this console.", hint, ""),
            needs_stream=False,
            height="calc(100vh - 12.5rem)",
            sort_by="at",
            is_descending=True,
            on_click=self._open,
        )
        parts.filtering(text, self._listing.table, chosen)
        self._outcome.on_value_change(lambda event: chosen.keep(outcome="" if event.value == _ANY else event.value))
        self._outcome.on_value_change(self._show)
        await self._update()
        live(self._update, every_s=EVERY_S)

    async def _update(self) -> None:
        with self._trouble.told():
            self._lines = list(await from_disk(self._service.audit, _NEWEST))
            self._show()

    def _show(self) -> None:
        rows = [_row(each) for each in self._lines if self._outcome.value in (_ANY, each.outcome)]
        self._listing.show(rows, is_empty=not self._lines)

    async def _open(self, row: tables.Row) -> None:
        line = next((each for each in self._lines if each.id == row.get("id")), None)
        if line is not None:
            await _show_line(line)


async def _show_line(line: AuditLine) -> None:
    took = None if line.ended_ms is None else (line.ended_ms - line.at_ms) / 1000
    with parts.drawn_dialog(line.action) as dialog:
        parts.badge(line.outcome, _TONES.get(line.outcome, "plain"))
        parts.facts(
            [
                ("Time", f"{texts.time_text(line.at_ms)} UTC"),
                ("Took", texts.duration_text(took)),
                ("Who", line.who),
                ("From", line.address),
                *((name, _text(value)) for name, value in line.parameters.items()),
                ("Result", line.text),
            ]
        )
        parts.dialog_buttons(dialog, "Close")
    await parts.until_closed(dialog)


def _row(line: AuditLine) -> tables.Row:
    return {
        "id": line.id,
        "at": line.at_ms,
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
