"""Which dead letters are wanted: the fields of a place's page as a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui

from penstock.console.web import parts
from penstock.model import LetterFilter, LetterState

_ANY: Final = ""
SINCE_S: Final = {"Any time": 0, "15 min": 900, "1 h": 3_600, "24 h": 86_400, "7 d": 604_800}
STATES: Final = {
    "Waiting": frozenset({LetterState.WAITING, LetterState.TAKEN}),
    "Redriven": frozenset({LetterState.REDRIVEN}),
    "Discarded": frozenset({LetterState.DISCARDED}),
    "All": frozenset(LetterState),
}


class Filters:
    """The fields, drawn side by side. `on_change` is called when what is wanted has changed."""

    def __init__(self, on_change: Callable[[], Any]) -> None:
        with parts.toolbar():
            self._state = parts.field(ui.select(list(STATES), value="Waiting", label="State"), width="9rem")
            self._kind = parts.field(ui.select({_ANY: "Any error"}, value=_ANY, label="Error"), width="12rem")
            self._text = parts.field(ui.input("Error holds"), width="11rem").props("clearable debounce=400")
            self._group = parts.field(ui.input("Group"), width="8.5rem").props("clearable debounce=400")
            self._topic = parts.field(ui.input("Topic"), width="8.5rem").props("clearable debounce=400")
            self._since = parts.field(ui.select(list(SINCE_S), value="Any time", label="Given up"), width="9rem")
        for element in (self._state, self._kind, self._text, self._group, self._topic, self._since):
            element.on_value_change(lambda _: on_change())

    def now(self) -> LetterFilter:
        """What is wanted now."""
        ago_s = SINCE_S[str(self._since.value)]
        return LetterFilter(
            group=self._written(self._group),
            topic=self._written(self._topic),
            error_kind=str(self._kind.value) or None,
            error_contains=self._written(self._text),
            since_ms=int((time.time() - ago_s) * 1000) if ago_s else None,
            states=STATES[str(self._state.value)],
        )

    @property
    def is_open_only(self) -> bool:
        """Whether only letters are shown that can be redriven."""
        return bool(self._state.value == "Waiting")

    def know_kinds(self, kinds: Sequence[str]) -> None:
        """Offer these kinds of error."""
        chosen = str(self._kind.value)
        options = {_ANY: "Any error", **{kind: kind for kind in kinds}}
        if chosen:
            options.setdefault(chosen, chosen)
        self._kind.set_options(options, value=chosen)

    def choose_kind(self, kind: str) -> None:
        """Only letters with this kind of error; the same again: all."""
        self._kind.set_value(_ANY if self._kind.value == kind else kind)

    @staticmethod
    def _written(element: ui.input) -> str | None:
        return str(element.value or "").strip() or None
