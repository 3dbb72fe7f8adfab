"""The pieces pages are made of. Every text that is given to them is shown as text, with what is hidden in it visible:
names of groups, clients and errors are written by others, and marks in them could turn one name into another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeVar

from nicegui import ui

from penstock.console.views import Shown
from penstock.console.visible import visible
from penstock.console.web.background import in_background
from penstock.console.web.charts import BarChart, Line, LineChart, Points, bar_chart, line_chart
from penstock.console.web.chosen import Chosen
from penstock.console.web.tables import Column, Row, Table, Tone, table
from penstock.console.web.texts import (
    NOTHING,
    ago_text,
    count_text,
    duration_text,
    number_text,
    path_to,
    rate_text,
    sentence,
    short_text,
    size_text,
    time_text,
)
from penstock.errors import PenstockError

__all__ = [
    "NOTHING",
    "READ_ONLY",
    "BarChart",
    "Column",
    "Line",
    "LineChart",
    "Points",
    "Row",
    "Stat",
    "Table",
    "Tone",
    "ago_text",
    "ask",
    "badge",
    "bar_chart",
    "button",
    "count_text",
    "duration_text",
    "empty",
    "facts",
    "field",
    "filter_field",
    "filtering",
    "forbid",
    "heading",
    "in_background",
    "label",
    "line_chart",
    "number_text",
    "opened_dialog",
    "panel",
    "path_to",
    "rate_text",
    "say",
    "saying_errors",
    "sentence",
    "short_text",
    "shown",
    "size_text",
    "stat",
    "stats",
    "table",
    "time_text",
    "title",
    "toolbar",
]

Result = TypeVar("Result")
READ_ONLY: Final = "This console only looks: it was started with --read-only."


@asynccontextmanager
async def saying_errors() -> AsyncIterator[None]:
    """What the user can solve is told as a notice instead of being raised: put every action inside one of these."""
    try:
        yield
    except PenstockError as error:
        say(str(error), "bad")


def say(text: str, tone: Tone = "info") -> None:
    """A short notice at the edge of the page."""
    ui.notify(
        visible(sentence(text)),
        position="bottom-right",
        multi_line=len(text) > 60,
        close_button="Close" if tone in ("bad", "warn") else False,
        timeout=0 if tone == "bad" else 5000,
        classes=f"notice tone-{tone}",
        textColor="notice",  # else it is white, which nothing of ours can undo: text-white is !important in its layer
    )


def title(text: str, about: str = "") -> None:
    """The heading of a page, with a sentence on what it shows."""
    with ui.element("div").classes("page-title"):
        heading("h1", text)
        if about:
            label(about).classes("about")


def label(text: str) -> ui.label:
    """A text that others may have written."""
    return ui.label(visible(text))


def heading(tag: Literal["h1", "h2", "h3"], text: str) -> ui.element:
    with ui.element(tag) as element:
        label(text)
    return element


@contextmanager
def toolbar() -> Iterator[ui.element]:
    """Controls side by side, which wrap where there is no room."""
    with ui.element("div").classes("toolbar") as element:
        yield element


@contextmanager
def panel(text: str = "", about: str = "") -> Iterator[ui.element]:
    """A surface with a heading."""
    with ui.element("section").classes("panel") as element:
        if text:
            with ui.element("div").classes("panel-head"):
                heading("h2", text)
                if about:
                    ui.label(about).classes("about")
        yield element


class Stat:
    """One figure with its name. `show` sends it only when it changed."""

    def __init__(
        self, label: str, value: str, *, note: str = "", tone: Tone = "plain", href: str | None = None
    ) -> None:
        with ui.element("a" if href else "div").classes("stat") as self.element:
            if href:
                self.element.props["href"] = href
            ui.label(label).classes("stat-label")
            self._value = ui.label(value).classes(f"stat-value tone-text-{tone}")
            self._note = ui.label(note).classes("stat-note")
        self._tone = tone

    def show(self, value: str, *, note: str = "", tone: Tone = "plain") -> None:
        if self._value.text != value:
            self._value.text = value
        if self._note.text != note:
            self._note.text = note
        if self._tone != tone:
            self._value.classes(remove=f"tone-text-{self._tone}", add=f"tone-text-{tone}")
            self._tone = tone


@contextmanager
def stats() -> Iterator[ui.element]:
    """A row of figures."""
    with ui.element("div").classes("stats") as element:
        yield element


def stat(label: str, value: str, *, note: str = "", tone: Tone = "plain", href: str | None = None) -> Stat:
    return Stat(label, value, note=note, tone=tone, href=href)


def badge(text: str, tone: Tone = "plain") -> ui.label:
    return label(text).classes(f"badge tone-{tone}")


def facts(pairs: Sequence[tuple[str, str]]) -> ui.element:
    """Names with values, one to a line."""
    with ui.element("dl").classes("facts") as element:
        for name, value in pairs:
            with ui.element("dt"):
                label(name)
            with ui.element("dd"):
                label(value)
    return element


def empty(text: str, hint: str = "", command: str = "") -> ui.element:
    """There is nothing here: say so, what to do next, and the command to type for it."""
    with ui.element("div").classes("empty") as element:
        label(text).classes("empty-text")
        if hint:
            label(hint).classes("about")
        if command:
            with ui.element("code").classes("command"):
                label(command)
    return element


def shown(what: Shown, *, is_block: bool = False) -> ui.element:
    """Bytes of a record as text: in one line, or as a block with all of its lines."""
    with ui.element("pre" if is_block else "span").classes(f"shown form-{_word(what.form)}") as element:
        ui.label(what.text if what.form not in ("null", "empty") else what.form)
        if what.is_cut:
            ui.label(f" … cut: {size_text(what.size_bytes)} in all").classes("about")
    if what.note and is_block:
        ui.label(what.note).classes("about")
    return element


def button(
    text: str,
    on_click: Callable[..., Any] | None = None,
    *,
    kind: Literal["plain", "primary", "danger", "quiet"] = "plain",
    icon: str | None = None,
) -> ui.button:
    """`kind`: one primary button on a page at most; danger for what cannot be undone."""
    element = ui.button(text, on_click=on_click, icon=icon, color=None)
    return element.props("flat no-caps dense").classes(f"button button-{kind}")


def filter_field(chosen: Chosen) -> ui.input:
    """The field with which the rows of a table are filtered; see `filtering`."""
    element = field(ui.input("Filter", value=chosen.asked("filter")), width="16rem")
    return element.props("clearable debounce=200")


def filtering(element: ui.input, shown_table: Table, chosen: Chosen) -> None:
    """Show only rows that hold what is written in the field, and keep that in the address."""

    def filter_by(text: str) -> None:
        shown_table.filter(text)
        chosen.keep(filter=text)

    element.on_value_change(lambda event: filter_by(event.value or ""))
    shown_table.filter(str(element.value or ""))


def forbid(element: ui.button, why: str = READ_ONLY) -> ui.button:
    """A button that cannot be used, and says why to who points at it."""
    element.disable()
    element.props["title"] = why
    return element


def field(element: Result, *, width: str = "") -> Result:
    """An input, select, number or textarea of NiceGUI in the console's looks: `field(ui.input("Name"))`."""
    element.props("outlined dense").classes("field")  # type: ignore[attr-defined]
    if width:
        element.style(f"width: {width}")  # type: ignore[attr-defined]
    return element


@contextmanager
def opened_dialog(text: str) -> Iterator[ui.dialog]:
    """A dialog with a heading, open once the block has drawn what is in it, and deleted once it is closed and hidden:
    whoever closes it may go on drawing, as long as nothing is awaited in between."""
    with ui.dialog() as dialog, ui.card().classes("dialog"):
        heading("h2", text)
        yield dialog
    dialog.on("hide", dialog.delete)
    dialog.open()


async def ask(
    question: str, text: str, *, confirm_word: str | None = None, action: str = "Go on", is_dangerous: bool = False
) -> bool:
    """Ask whether to go on. With `confirm_word` the answer is yes only once that word was typed."""
    with ui.dialog() as dialog, ui.card().classes("dialog"):
        heading("h2", question)
        label(text).classes("dialog-text")
        typed = None
        if confirm_word is not None:
            confirm_word = visible(confirm_word)  # what is hidden in a name cannot be typed
            label(f"Type {confirm_word} to confirm.").classes("about")
            typed = field(ui.input()).props('autofocus aria-label="confirmation"')
        with ui.element("div").classes("dialog-buttons"):
            button("Cancel", lambda: dialog.submit(False), kind="quiet")
            go = button(action, lambda: dialog.submit(True), kind="danger" if is_dangerous else "primary")
        if typed is not None:
            go.disable()
            typed.on_value_change(lambda event: go.set_enabled(event.value == confirm_word))
    dialog.open()
    answer = await dialog
    # What the browser sends is checked once more: a button that was enabled by hand confirms nothing.
    is_confirmed = bool(answer) and (typed is None or typed.value == confirm_word)
    dialog.delete()
    return is_confirmed


def _word(form: str) -> str:
    return "".join(letter for letter in form if letter.isalnum())
