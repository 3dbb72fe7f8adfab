"""A rule of alerts as a form: what is wrong with it stands at the field that is wrong."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement

from penstock.console.web import parts
from penstock.console.web.frame import Console, person
from penstock.console.web.pages.looks import until_closed
from penstock.errors import PenstockError
from penstock.observe.alerts.rules import Kind, Rule, Severity

KIND_WORDS: Final = {
    Kind.LAG_S: "Lag in seconds: the oldest unread record has waited so long",
    Kind.LAG: "Lag in records: so many are not read",
    Kind.TIME_TO_LOSS_S: "Time to loss: retention overtakes a group so soon",
    Kind.LETTERS_RATE: "Dead letters a minute: so many come",
    Kind.LETTERS_WAITING: "Dead letters waiting: so many wait",
    Kind.STALLED: "Stalled: something to read, and no progress for so long",
    Kind.TOPIC_SILENT: "Silent topic: nothing appended for so long",
    Kind.LOST: "Lost: so many records expired unread",
    Kind.STREAM_AWAY: "Stream away: no answer for so long",
}
_SENTENCES: Final = {
    Kind.LAG_S: "the oldest unread record has waited {}",
    Kind.LAG: "{} records or more are not read",
    Kind.TIME_TO_LOSS_S: "retention overtakes a group within {}",
    Kind.LETTERS_RATE: "{} dead letters or more come in a minute",
    Kind.LETTERS_WAITING: "{} dead letters or more wait",
    Kind.STALLED: "something to read, and no progress for {}",
    Kind.TOPIC_SILENT: "nothing is appended for {}",
    Kind.LOST: "{} or more records expired unread",
    Kind.STREAM_AWAY: "the stream does not answer for {}",
}
# In this order: a message may hold several of these words, and the first is what it is about.
_FIELD_WORDS: Final = (
    ("is no name", "name"),
    ("already", "name"),
    ("threshold", "threshold"),
    ("for_s", "for_s"),
    ("quiet_s", "quiet_s"),
    ("notif", "notify"),
    ("unless", "match"),
    ("match", "match"),
)


def threshold_text(rule: Rule) -> str:
    """When a rule fires, in words: the oldest unread record has waited 5 min, for 2 min."""
    amount = parts.duration_text(rule.threshold) if rule.kind.unit == "s" else parts.number_text(rule.threshold)
    held = f", for {parts.duration_text(rule.for_s)}" if rule.for_s else ""
    return _SENTENCES[rule.kind].format(amount) + held


def field_of(message: str) -> str:
    """The field that an error is about; empty when it is about none of them."""
    return next((field for words, field in _FIELD_WORDS if words in message), "")


class RuleDialog:
    """The form, for a new rule or one to be changed, opened once."""

    def __init__(self, console: Console, rule: Rule | None) -> None:
        self._console = console
        self._service = console.service
        self._rule = rule

    async def open(self) -> None:
        """Ends when the rule is saved or the dialog was closed."""
        rule = self._rule
        notifiers = [state.name for state in await parts.in_background(self._service.notifiers)]
        known = list(dict.fromkeys([*notifiers, *(rule.notify if rule else ())]))
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            parts.heading("h2", f"Edit rule {rule.name}" if rule else "Add a rule")
            self._name = parts.field(ui.input("Name", value=rule.name if rule else ""))
            self._name.set_enabled(rule is None)
            self._kind = parts.field(ui.select({str(kind): words for kind, words in KIND_WORDS.items()}, label="What"))
            self._threshold = parts.field(ui.number("Threshold", value=rule.threshold if rule else 300, min=0))
            self._match = parts.field(ui.input("For these names", value=rule.match if rule else "*"))
            self._unless = parts.field(ui.input("But not these", value=rule.unless if rule else ""))
            with parts.toolbar():
                self._for_s = parts.field(
                    ui.number("True for, seconds", value=rule.for_s if rule else 60, min=0), width="12rem"
                )
                self._quiet_s = parts.field(
                    ui.number("Resolved after, seconds", value=rule.quiet_s if rule else 60, min=0), width="12rem"
                )
            self._severity = parts.field(
                ui.select(
                    [str(each) for each in Severity],
                    value=str(rule.severity if rule else Severity.WARNING),
                    label="Severity",
                )
            )
            self._notify = parts.field(
                ui.select(known, value=list(rule.notify) if rule else known[:1], label="Tell", multiple=True)
            )
            self._problem = ui.label().classes("notice-inline tone-bad").props('role="alert"')
            self._problem.set_visibility(False)
            with ui.element("div").classes("dialog-buttons"):
                parts.button("Cancel", dialog.close, kind="quiet")
                parts.button("Save", lambda: self._save(dialog), kind="primary")
        self._kind.on_value_change(self._name_units)
        self._kind.set_value(str(rule.kind if rule else Kind.LAG_S))
        self._name_units()
        await until_closed(dialog)

    def _name_units(self) -> None:
        kind = Kind(self._kind.value)
        self._threshold.props["suffix"] = kind.unit
        self._match.props["hint"] = f"{kind.subjects}; * is all, orders.* those that begin so"
        self._match.set_enabled(kind is not Kind.STREAM_AWAY)
        self._unless.set_enabled(kind is not Kind.STREAM_AWAY)

    async def _save(self, dialog: ui.dialog) -> None:
        self._clear_errors()
        try:
            rule = self._made()
            if rule is None:
                return
            await parts.in_background(
                self._service.add_rule, person(self._console), rule, replace=self._rule is not None
            )
        except PenstockError as error:
            self._tell(str(error).removeprefix(f"rule {str(self._name.value or '').strip()}: "))
            return
        parts.say(f"Rule {rule.name} is saved.", "good")
        dialog.close()

    def _made(self) -> Rule | None:
        numbers = {"threshold": self._threshold, "for_s": self._for_s, "quiet_s": self._quiet_s}
        missing = [element for element in numbers.values() if element.value is None]
        for element in missing:
            element.error = "Give a number."
        if missing:
            return None
        kind = Kind(self._kind.value)
        is_for_names = kind is not Kind.STREAM_AWAY
        return Rule(
            name=str(self._name.value or "").strip(),
            kind=kind,
            threshold=float(self._threshold.value),
            match=str(self._match.value or "").strip() if is_for_names else "*",
            unless=str(self._unless.value or "").strip() if is_for_names else "",
            for_s=float(self._for_s.value),
            quiet_s=float(self._quiet_s.value),
            severity=Severity(self._severity.value),
            notify=tuple(self._notify.value or ()),
        )

    def _clear_errors(self) -> None:
        self._problem.set_visibility(False)
        for element in (self._name, self._threshold, self._for_s, self._quiet_s, self._match, self._notify):
            element.error = None

    def _tell(self, message: str) -> None:
        fields: dict[str, ValidationElement[Any]] = {
            "name": self._name,
            "threshold": self._threshold,
            "for_s": self._for_s,
            "quiet_s": self._quiet_s,
            "match": self._match,
            "notify": self._notify,
        }
        element = fields.get(field_of(message))
        if element is not None:
            element.error = message
        else:
            self._problem.set_text(message)
            self._problem.set_visibility(True)
