"""Which dead letters are wanted: the fields of a place's page as a filter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from nicegui import ui

from penstock.console.visible import visible
from penstock.console.web import parts
from penstock.console.web.chosen import Chosen
from penstock.model import LetterFilter, LetterState

_ANY: Final = ""
_ANY_TIME: Final = "Any time"
_OPEN: Final = "Waiting"
SINCE_S: Final = {_ANY_TIME: 0, "15 min": 900, "1 h": 3_600, "24 h": 86_400, "7 d": 604_800}
STATES: Final = {
    _OPEN: frozenset({LetterState.WAITING, LetterState.TAKEN}),
    "Redriven": frozenset({LetterState.REDRIVEN}),
    "Discarded": frozenset({LetterState.DISCARDED}),
    "All": frozenset(LetterState),
}


class Filters:
    """The fields, drawn side by side. `on_change` is called when what is wanted has changed."""

    def __init__(self, chosen: Chosen, on_change: Callable[[], Any]) -> None:
        asked = chosen.asked
        kind = asked("error")
        with parts.toolbar():
            state = ui.select(list(STATES), value=asked("state", _OPEN, STATES), label="State")
            self._state = parts.field(state, width="9rem")
            kinds = {_ANY: "Any error"} | ({kind: visible(kind)} if kind else {})
            self._kind = parts.field(ui.select(kinds, value=kind or _ANY, label="Error"), width="12rem")
            self._text = self._field("Error holds", asked("holds"), "11rem")
            self._group = self._field("Group", asked("group"), "8.5rem")
            self._topic = self._field("Topic", asked("topic"), "8.5rem")
            since = ui.select(list(SINCE_S), value=asked("since", _ANY_TIME, SINCE_S), label="Given up")
            self._since = parts.field(since, width="9rem")

        def changed() -> Any:
            chosen.keep(
                state="" if self._state.value == _OPEN else str(self._state.value),
                error=str(self._kind.value),
                holds=self._written(self._text) or "",
                group=self._written(self._group) or "",
                topic=self._written(self._topic) or "",
                since="" if self._since.value == _ANY_TIME else str(self._since.value),
            )
            return on_change()

        for element in (self._state, self._kind, self._text, self._group, self._topic, self._since):
            element.on_value_change(lambda _: changed())

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
        return bool(self._state.value == _OPEN)

    def know_kinds(self, kinds: Sequence[str]) -> None:
        """Offer these kinds of error."""
        chosen = str(self._kind.value)
        options = {_ANY: "Any error", **{kind: visible(kind) for kind in kinds}}
        if chosen:
            options.setdefault(chosen, visible(chosen))
        self._kind.set_options(options, value=chosen)

    def choose_kind(self, kind: str) -> None:
        """Only letters with this kind of error; the same again: all."""
        self._kind.set_value(_ANY if self._kind.value == kind else kind)

    @staticmethod
    def _field(label: str, text: str, width: str) -> ui.input:
        return parts.field(ui.input(label, value=text), width=width).props("clearable debounce=400")

    @staticmethod
    def _written(element: ui.input) -> str | None:
        return str(element.value or "").strip() or None
