"""The programs that a supervisor runs: their states and restarts; one of them, with the end of its log."""

from __future__ import annotations

import re
from typing import Final

from nicegui import ui

from penstock.console.views import ProgramDetail
from penstock.console.visible import visible
from penstock.console.web import parts, tables, texts
from penstock.console.web.absence import Listing
from penstock.console.web.background import from_disk
from penstock.console.web.frame import Console, frame, live
from penstock.errors import PenstockError
from penstock.observe.programs import ProgramState, ProgramStatus, SupervisorFacts

_COLUMNS: Final = (
    tables.Column("name", "Program", "mono"),
    tables.Column("state", "State", "badge"),
    tables.Column("since", "Since", on_phone=False, text=texts.ago_text),
    tables.Column("restarts", "Restarts", "number", text=texts.number_text),
    tables.Column("progress", "Records and rows", "number", on_phone=False, text=texts.number_text),
    tables.Column("pid", "Process", "number", on_phone=False),
    tables.Column("problem", "Problem, or last error", "wide", on_phone=False),
)
_TONES: Final[dict[ProgramState, tables.Tone]] = {
    "starting": "info",
    "running": "good",
    "restarting": "warn",
    "stopping": "info",
    "finished": "good",
    "stopped": "plain",
    "failed": "bad",
    "dead": "bad",
}
_COLOURS: Final = re.compile("\x1b\\[[0-9;]*m")


def register(console: Console) -> None:
    @ui.page("/programs")
    async def programs_page() -> None:
        with frame(console, "Programs", "programs"):
            parts.title("Programs", "What penstock up runs, and starts again when it dies.")
            trouble = parts.Problem()
            supervisor = parts.label("").classes("about")
            nothing = (
                "No supervisor has run here.",
                "It is found by its logs: in the folder logs beside the console, or where --programs says.",
                "penstock up .",
            )
            listing = Listing(console, _COLUMNS, nothing, key="name", sort_by="name", needs_stream=False)

            async def update() -> None:
                with trouble.told():
                    facts = await from_disk(console.service.programs)
                    supervisor.set_text("" if facts is None else _supervisor_text(facts))
                    listing.show([] if facts is None else [_row(each) for each in facts.programs])

            await update()
            live(update)

    @ui.page("/programs/{name:path}")
    async def program_page(name: str) -> None:
        with frame(console, name, "programs"):
            try:
                detail = await from_disk(console.service.program, name)
            except PenstockError as error:
                parts.title(name)
                parts.empty("This program cannot be shown.", texts.sentence(str(error)))
            else:
                _Program(console, detail).draw()


def _supervisor_text(facts: SupervisorFacts) -> str:
    process = f"process {facts.status.supervisor} on {facts.status.host}, with its logs in {facts.folder}"
    if facts.is_running:
        return f"The supervisor is {process}."
    return f"The supervisor was {process}. It has ended; its last report was {texts.ago_text(facts.status.at_ms)}."


def _row(program: ProgramStatus) -> tables.Row:
    return {
        "name": program.name,
        "name_href": texts.path_to("programs", program.name),
        "state": program.state,
        "state_tone": _tone(program),
        "since": program.since_ms,
        "restarts": program.restarts,
        "restarts_tone": "warn" if program.restarts else "plain",
        "progress": program.progress,
        "pid": program.pid,
        "problem": "; ".join(program.problems) or program.last_error or "",
    }


def _tone(program: ProgramStatus) -> tables.Tone:
    return "warn" if program.state == "running" and not program.is_ready else _TONES[program.state]


class _Program:
    """The page of one program, which follows it."""

    def __init__(self, console: Console, detail: ProgramDetail) -> None:
        self._service = console.service
        self._detail = detail

    def draw(self) -> None:
        status = self._detail.status
        with parts.toolbar():
            parts.title(status.name, status.file)
            self._state = parts.badge("")
        self._problem = parts.Problem("warn")
        with parts.panel():
            self._facts = ui.element("div")
        with parts.panel("Log", f"The end of {self._detail.supervisor.folder / f'{status.name}.log'}"):
            with ui.element("pre").classes("shown").props('tabindex="0"'):
                self._log = parts.label("")
            self._quiet = parts.label("It has printed nothing.").classes("about")
        self._shown: ProgramDetail | None = None
        self._show()
        live(self._update)

    async def _update(self) -> None:
        try:
            self._detail = await from_disk(self._service.program, self._detail.status.name)
        except PenstockError:
            return  # the file is being replaced, or gone; the known facts stay
        self._show()

    def _show(self) -> None:
        detail, status = self._detail, self._detail.status
        if self._shown is not None and (self._shown.status, self._shown.log) == (status, detail.log):
            return
        self._shown = detail
        self._state.set_text(status.state)
        self._state.classes(replace=f"badge tone-{_tone(status)}")
        self._problem.show(visible(texts.sentence("; ".join(status.problems))) if status.problems else "")
        self._facts.clear()
        with self._facts:
            parts.facts(
                [
                    ("Since", f"{texts.time_text(status.since_ms)} UTC"),
                    ("Restarts", texts.number_text(status.restarts)),
                    ("Last error", status.last_error or "none"),
                    ("Records and rows of this run", texts.number_text(status.progress)),
                    ("Process", str(status.pid) if status.pid is not None else "none"),
                    ("Supervisor", _supervisor_text(detail.supervisor)),
                ]
            )
        self._log.set_text(visible(_COLOURS.sub("", detail.log).replace("\r\n", "\n")))
        self._log.set_visibility(bool(detail.log))
        self._quiet.set_visibility(not detail.log)
