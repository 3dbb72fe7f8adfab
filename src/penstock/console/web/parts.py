"""The building blocks of pages. Texts given to them are shown as text, with hidden characters made visible: names of
groups, clients and errors are written by others, and marks in them could disguise one name as another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

from nicegui import ui

from penstock.console.views import Shown
from penstock.console.visible import visible
from penstock.console.web.tables import Table, Tone
from penstock.console.web.texts import sentence, size_text
from penstock.errors import PenstockError

Result = TypeVar("Result")
READ_ONLY: Final = "This console is read-only: it was started with --read-only."


@asynccontextmanager
async def saying_errors() -> AsyncIterator[None]:
    """Show errors that the user can solve as a notice: put every action inside one of these."""
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
        textColor="notice",  # else it is white: Quasar's text-white is !important
    )


class Problem:
    """A line that says what is wrong, hidden while nothing is. Unlike a notice it does not come again and again."""

    def __init__(self, tone: Tone = "bad") -> None:
        self._label = ui.label().classes(f"notice-inline tone-{tone}").props('role="alert"')
        self._label.set_visibility(False)

    def show(self, text: str) -> None:
        """Show this text; an empty one hides the line."""
        self._label.set_text(text)
        self._label.set_visibility(bool(text))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Show an error that the user can solve, or hide the last one when there is none."""
        try:
            yield
        except PenstockError as error:
            self.show(str(error))
        else:
            self.show("")


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

    def __init__(self, label: str, value: str = "", *, href: str | None = None) -> None:
        with ui.element("a" if href else "div").classes("stat") as self.element:
            if href:
                self.element.props["href"] = href
            ui.label(label).classes("stat-label")
            self._value = ui.label(value).classes("stat-value tone-text-plain")
            self._note = ui.label().classes("stat-note")
        self._tone: Tone = "plain"

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
    with ui.element("div").classes("stats") as element:
        yield element


def badge(text: str, tone: Tone = "plain") -> ui.label:
    return label(text).classes(f"badge tone-{tone}")


def facts(pairs: Sequence[tuple[str, str]]) -> ui.element:
    with ui.element("dl").classes("facts") as element:
        for name, value in pairs:
            with ui.element("dt"):
                label(name)
            with ui.element("dd"):
                label(value)
    return element


def empty(text: str, hint: str = "", command: str = "") -> ui.element:
    """A placeholder: that there is nothing, what to do next, and the command for it."""
    with ui.element("div").classes("empty") as element:
        label(text).classes("empty-text")
        if hint:
            label(hint).classes("about")
        if command:
            with ui.element("code").classes("command"):
                label(command)
    return element


def shown(what: Shown, *, is_block: bool = False) -> ui.element:
    """Bytes of a record as text: in one line, or as a block."""
    with ui.element("pre" if is_block else "span").classes(f"shown form-{_word(what.form)}") as element:
        ui.label(what.text if what.form not in ("null", "empty") else what.form)
        if what.is_cut:
            ui.label(f" … cut: {size_text(what.size_bytes)} in all").classes("about")
    if what.note and is_block:
        ui.label(what.note).classes("about")
    return element


def headers(pairs: Sequence[tuple[str, Shown]]) -> ui.element:
    """The headers of a record, one per line."""
    with ui.element("dl").classes("facts") as element:
        for name, value in pairs:
            with ui.element("dt"):
                label(name)
            with ui.element("dd"):
                shown(value)
    return element


def downloads(address: str, value: Shown, key: Shown) -> None:
    """Links to the value and the key as files, where they are not empty."""
    for which, what in (("value", value), ("key", key)):
        if what.size_bytes:
            with ui.element("a").classes("button button-link").props(f'href="{address}/{which}" download'):
                label(f"Download {which}")


def button(
    text: str,
    on_click: Callable[..., Any] | None = None,
    *,
    kind: Literal["plain", "primary", "danger", "quiet"] = "plain",
    icon: str | None = None,
) -> ui.button:
    """`kind`: at most one primary button on a page; danger for what cannot be undone."""
    element = ui.button(text, on_click=on_click, icon=icon, color=None)
    return element.props("flat no-caps dense").classes(f"button button-{kind}")


def filter_field(chosen: PageChoices) -> ui.input:
    """The field that filters the rows of a table; see `filtering`."""
    element = field(ui.input("Filter", value=chosen.asked("filter")), width="16rem")
    return element.props("clearable debounce=200")


def filtering(element: ui.input, shown_table: Table, chosen: PageChoices) -> None:
    """Show only rows that contain the text of the field, and keep it in the address."""

    def filter_by(text: str) -> None:
        shown_table.filter(text)
        chosen.keep(filter=text)

    element.on_value_change(lambda event: filter_by(event.value or ""))
    shown_table.filter(str(element.value or ""))


def forbid(element: ui.button, why: str = READ_ONLY) -> ui.button:
    """Disable a button, with the reason as its tooltip."""
    element.disable()
    element.props["title"] = why
    return element


def field(element: Result, *, width: str = "") -> Result:
    """An input, select, number or textarea of NiceGUI in the console's style: `field(ui.input("Name"))`."""
    element.props("outlined dense").classes("field")  # type: ignore[attr-defined]
    if width:
        element.style(f"width: {width}")  # type: ignore[attr-defined]
    return element


@contextmanager
def drawn_dialog(text: str, classes: str = "") -> Iterator[ui.dialog]:
    """A dialog with a heading, to be opened by `until_closed`."""
    with ui.dialog() as dialog, ui.card().classes(f"dialog {classes}"):
        heading("h2", text)
        yield dialog


@contextmanager
def opened_dialog(text: str) -> Iterator[ui.dialog]:
    """A dialog with a heading, opened when the block ends, and deleted once it is closed and hidden: the code that
    closes it may continue to draw, as long as it awaits nothing in between."""
    with drawn_dialog(text) as dialog:
        yield dialog
    dialog.on("hide", dialog.delete)
    dialog.open()


def dialog_buttons(dialog: ui.dialog, close: str = "Cancel") -> ui.element:
    """The buttons at the end of a dialog. The first one closes it; draw others in a `with` block."""
    with ui.element("div").classes("dialog-buttons") as element:
        button(close, dialog.close, kind="quiet")
    return element


async def until_closed(dialog: ui.dialog) -> Any:
    """Open a dialog, and return what was submitted in it; None when it was closed. When its page is left meanwhile, the
    caller is cancelled."""
    result = await dialog
    if dialog.is_deleted:
        raise asyncio.CancelledError
    dialog.delete()
    return result


async def ask(
    question: str, text: str, *, confirm_word: str | None = None, action: str = "Go on", is_dangerous: bool = False
) -> bool:
    """Ask for a confirmation. With `confirm_word` the answer is yes only once that word was typed."""
    with drawn_dialog(question) as dialog:
        label(text).classes("dialog-text")
        typed = None
        if confirm_word is not None:
            confirm_word = visible(confirm_word)  # hidden characters cannot be typed
            label(f"Type {confirm_word} to confirm.").classes("about")
            typed = field(ui.input()).props('autofocus aria-label="confirmation"')
        with dialog_buttons(dialog):
            go = button(action, lambda: dialog.submit(True), kind="danger" if is_dangerous else "primary")
        if typed is not None:
            go.disable()
            typed.on_value_change(lambda event: go.set_enabled(event.value == confirm_word))
    answer = await until_closed(dialog)
    # What the browser sends is checked once more: a button that was enabled by hand confirms nothing.
    return bool(answer) and (typed is None or typed.value == confirm_word)


def _word(form: str) -> str:
    return "".join(letter for letter in form if letter.isalnum())


LONGEST: Final = 4_000
"""Longer choices are not kept: browsers and proxies accept addresses of some kilobytes."""


class PageChoices:
    """The choices of one open page at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._asked = dict(ui.context.client.request.query_params)
        self._kept = {name: text for name, text in self._asked.items() if text}

    def asked(self, name: str, default: str = "", among: Collection[str] | None = None) -> str:
        """The choice in the address; `default` where there is none, or none of those allowed."""
        text = self._asked.get(name, default)
        return text if among is None or text in among else default

    def keep(self, **chosen: str) -> None:
        """Keep these choices; an empty text is the default choice."""
        kept = {name: text for name, text in {**self._kept, **chosen}.items() if text}
        if kept != self._kept:
            self._kept = kept
            ui.navigate.history.replace(address(self._path, kept))


def address(path: str, chosen: dict[str, str]) -> str:
    query = urlencode(chosen)
    return f"{path}?{query}" if query and len(query) <= LONGEST else path
