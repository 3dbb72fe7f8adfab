"""What stands on a page that cannot show what it is for: there is nothing, or nothing is known, or it failed."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.frame import Console, live
from penstock.errors import PenstockError


class Nothing:
    """What stands where there is nothing to show: what to do next; or that nobody knows, until the stream answers."""

    def __init__(
        self, console: Console, text: str, hint: str = "", command: str = "", *, needs_stream: bool = True
    ) -> None:
        self._service = console.service
        self._needs_stream = needs_stream
        with ui.element("div") as self.element:
            self._nothing = parts.empty(text, hint, command)
            self._unknown = parts.empty("Not known yet.", "The stream has not answered; this goes on when it does.")

    def show(self, is_empty: bool) -> None:
        """Whether there is nothing to show."""
        self.element.set_visibility(is_empty)
        is_known = self._service.is_known or not self._needs_stream
        self._nothing.set_visibility(is_known)
        self._unknown.set_visibility(not is_known)


def draw_failure(title: str, text: str, error: PenstockError, ask: Callable[[], object], command: str = "") -> None:
    """Draw that a page cannot be shown, and why. It is shown by itself as soon as `ask` does not fail any more."""
    parts.title(title)
    with parts.panel():
        why = parts.empty(text, parts.sentence(str(error)), command)

    async def again() -> None:
        try:
            await parts.in_background(ask)
        except PenstockError:
            return
        if not why.is_deleted:
            ui.navigate.reload()

    live(again)
