"""What a page shows when it has nothing to show: nothing exists, nothing is known yet, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from nicegui import ui

from penstock.console.web import parts, texts
from penstock.console.web.background import in_background
from penstock.console.web.frame import Console, live
from penstock.console.web.tables import Column, Row, Table
from penstock.errors import PenstockError

Result = TypeVar("Result")


class Nothing:
    """A placeholder for an empty page: what to do next; or that nothing is known until the stream answers."""

    def __init__(
        self, console: Console, text: str, hint: str = "", command: str = "", *, needs_stream: bool = True
    ) -> None:
        self._service = console.service
        self._needs_stream = needs_stream
        with ui.element("div") as self.element:
            self._nothing = parts.empty(text, hint, command)
            self._unknown = parts.empty(
                "Not known yet.", "The stream has not answered yet; this is updated as soon as it does."
            )

    def show(self, is_empty: bool) -> None:
        """Whether there is nothing to show."""
        self.element.set_visibility(is_empty)
        is_known = self._service.is_known or not self._needs_stream
        self._nothing.set_visibility(is_known)
        self._unknown.set_visibility(not is_known)


class Listing:
    """A panel with a table, or with a placeholder while there are no rows. Shows neither before the first `show`."""

    def __init__(
        self,
        console: Console,
        columns: Sequence[Column],
        nothing: tuple[str, str, str],
        *,
        title: str = "",
        needs_stream: bool = True,
        **options: Any,
    ) -> None:
        """`nothing` is a text, a hint and a command, see `Nothing`; `options` are those of `Table`."""
        with parts.panel(title) as self._panel:
            self._nothing = Nothing(console, *nothing, needs_stream=needs_stream)
            self.table = Table(columns, (), **options)
        self._panel.set_visibility(False)

    def show(self, rows: Sequence[Row], *, is_empty: bool | None = None) -> None:
        """Show these rows. `is_empty`: whether there is nothing to show even without a filter."""
        is_empty = not rows if is_empty is None else is_empty
        self.table.show(rows)
        self.table.element.set_visibility(not is_empty)
        self._nothing.show(is_empty)
        self._panel.set_visibility(True)


@contextmanager
def waiting_for(title: str) -> Iterator[None]:
    """A placeholder until the page's facts have arrived: its title, and that it is loading."""
    with ui.element("div").style("display: contents") as standing:
        parts.title(title)
        with parts.panel():
            parts.empty("Loading.", "This page appears as soon as the broker answers.")
    try:
        yield
    finally:
        if not standing.is_deleted:
            standing.delete()


async def loaded(title: str, text: str, ask: Callable[[], Result], command: str = "") -> Result | None:
    """The result of `ask`, with a placeholder meanwhile. None if it fails: the page then shows `text`, and why."""
    try:
        with waiting_for(title):
            return await in_background(ask)
    except PenstockError as error:
        draw_failure(title, text, error, ask, command)
        return None


def draw_failure(title: str, text: str, error: PenstockError, ask: Callable[[], object], command: str = "") -> None:
    """Draw why a page cannot be shown. It reloads by itself as soon as `ask` succeeds, or when the user asks for it."""
    parts.title(title)
    with parts.panel():
        why = parts.empty(text, texts.sentence(str(error)), command)
        parts.button("Try again", ui.navigate.reload, icon="refresh").classes("to-the-left")

    async def again() -> None:
        try:
            await in_background(ask)
        except PenstockError:
            return
        if not why.is_deleted:
            ui.navigate.reload()

    live(again)
