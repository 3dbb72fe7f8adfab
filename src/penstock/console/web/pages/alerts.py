"""The alerts: what fires now, what fired recently, the rules, and the state of notifications."""

from __future__ import annotations

import time
from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.validation_element import ValidationElement

from penstock.console.web import parts, tables, texts
from penstock.console.web.background import from_disk, in_background
from penstock.console.web.frame import Console, frame, live, person
from penstock.errors import PenstockError
from penstock.observe.alerts.rules import AlertState, NotifierState, Phase, Rule, RuleKind, Severity

KIND_WORDS: Final = {
    RuleKind.LAG_S: "Lag in seconds: the oldest unread record has waited this long",
    RuleKind.LAG: "Lag in records: this many are not read",
    RuleKind.TIME_TO_LOSS_S: "Time to loss: retention overtakes a group within this time",
    RuleKind.LETTERS_RATE: "Dead letters a minute: this many arrive",
    RuleKind.LETTERS_WAITING: "Dead letters waiting: this many wait",
    RuleKind.STALLED: "Stalled: something to read, and no progress for this long",
    RuleKind.TOPIC_SILENT: "Silent topic: nothing appended for this long",
    RuleKind.LOST: "Lost: this many records expired unread",
    RuleKind.STREAM_AWAY: "Stream away: no answer for this long",
}
_SENTENCES: Final = {
    RuleKind.LAG_S: "the oldest unread record has waited {}",
    RuleKind.LAG: "{} records or more are not read",
    RuleKind.TIME_TO_LOSS_S: "retention overtakes a group within {}",
    RuleKind.LETTERS_RATE: "{} dead letters or more come in a minute",
    RuleKind.LETTERS_WAITING: "{} dead letters or more wait",
    RuleKind.STALLED: "something to read, and no progress for {}",
    RuleKind.TOPIC_SILENT: "nothing is appended for {}",
    RuleKind.LOST: "{} or more records expired unread",
    RuleKind.STREAM_AWAY: "the stream does not answer for {}",
}
# In this order: a message may contain several of these words, and the first one names the field.
_FIELD_WORDS: Final = (
    ("is not a valid name", "name"),
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
    amount = texts.duration_text(rule.threshold) if rule.kind.unit == "s" else texts.number_text(rule.threshold)
    held = f", for {texts.duration_text(rule.for_s)}" if rule.for_s else ""
    return _SENTENCES[rule.kind].format(amount) + held


def field_of(message: str) -> str:
    """The field that an error is about; empty for none."""
    return next((field for words, field in _FIELD_WORDS if words in message), "")


class RuleDialog:
    def __init__(self, console: Console, rule: Rule | None) -> None:
        self._console = console
        self._service = console.service
        self._rule = rule

    async def open(self) -> None:
        """Returns when the rule is saved or the dialog is closed."""
        rule = self._rule
        notifiers = [state.name for state in await from_disk(self._service.notifiers)]
        known = list(dict.fromkeys([*notifiers, *(rule.notify if rule else ())]))
        with parts.drawn_dialog(f"Edit rule {rule.name}" if rule else "Add a rule") as dialog:
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
                ui.select(known, value=list(rule.notify) if rule else known[:1], label="Notify", multiple=True)
            )
            self._problem = parts.Problem()
            with parts.dialog_buttons(dialog):
                parts.button("Save", lambda: self._save(dialog), kind="primary")
        self._kind.on_value_change(self._name_units)
        self._kind.set_value(str(rule.kind if rule else RuleKind.LAG_S))
        self._name_units()
        await parts.until_closed(dialog)

    def _name_units(self) -> None:
        kind = RuleKind(self._kind.value)
        self._threshold.props["suffix"] = kind.unit
        self._match.props["hint"] = f"{kind.subjects}; * is all, orders.* those that begin so"
        self._match.set_enabled(kind is not RuleKind.STREAM_AWAY)
        self._unless.set_enabled(kind is not RuleKind.STREAM_AWAY)

    async def _save(self, dialog: ui.dialog) -> None:
        self._problem.show("")
        for element in self._fields().values():
            element.error = None
        try:
            rule = self._made()
            if rule is None:
                return
            await in_background(self._service.add_rule, person(self._console), rule, replace=self._rule is not None)
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
        kind = RuleKind(self._kind.value)
        is_for_names = kind is not RuleKind.STREAM_AWAY
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

    def _fields(self) -> dict[str, ValidationElement[Any]]:
        return {
            "name": self._name,
            "threshold": self._threshold,
            "for_s": self._for_s,
            "quiet_s": self._quiet_s,
            "match": self._match,
            "notify": self._notify,
        }

    def _tell(self, message: str) -> None:
        element = self._fields().get(field_of(message))
        if element is not None:
            element.error = message
        else:
            self._problem.show(message)


MUTES_S: Final = {"15 min": 900, "1 h": 3_600, "8 h": 28_800, "24 h": 86_400, "7 d": 604_800}
_SHOWN_RESOLVED: Final = 50
_RULES: Final = (
    tables.Column("name", "Rule", "mono"),
    tables.Column("when", "Fires when", "sentence"),
    tables.Column("match", "For", "mono", on_phone=False),
    tables.Column("severity", "Severity", "badge", on_phone=False),
    tables.Column("notify", "Notifies", "mono", on_phone=False),
    tables.Column("muted", "Muted", "badge"),
)
_NOTIFIERS: Final = (
    tables.Column("name", "Notifier", "mono"),
    tables.Column("type", "Type"),
    tables.Column("target", "To", "mono", on_phone=False),
    tables.Column("sent", "Sent", "number"),
    tables.Column("sent_ms", "Last sent", on_phone=False, text=texts.ago_text),
    tables.Column("state", "State", "badge"),
    tables.Column("error", "Error", "wide", on_phone=False),
)
_SUBJECT_PAGES: Final = {
    RuleKind.LAG_S: "groups",
    RuleKind.TIME_TO_LOSS_S: "groups",
    RuleKind.LOST: "groups",
    RuleKind.LETTERS_RATE: "letters",
    RuleKind.LETTERS_WAITING: "letters",
    RuleKind.TOPIC_SILENT: "topics",
}


def register(console: Console) -> None:
    @ui.page("/alerts")
    async def alerts_page() -> None:
        with frame(console, "Alerts", "alerts"):
            parts.title("Alerts", "What needs attention, the rules behind it, and who is notified.")
            await _Alerts(console).draw()


class _Alerts:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._drawn: tuple[object, ...] | None = None

    async def draw(self) -> None:
        self._trouble = parts.Problem()
        self._problem = parts.Problem("warn")
        with parts.panel("Now"):
            self._now = ui.element("div").classes("alerts")
        with parts.panel("Rules", "Click a rule to change, mute or remove it."):
            self._rules = tables.Table(_RULES, (), key="name", sort_by="name", on_click=self._open_rule)
            with parts.toolbar():
                add = parts.button("Add rule", self._add_rule, kind="primary", icon="add")
        about = "Configured in the file of rules. Click one to send a test message."
        with parts.panel("Notifiers", about) as self._notifiers_panel:
            self._notifiers = tables.Table(_NOTIFIERS, (), key="name", sort_by="name", on_click=self._test_notifier)
        with parts.panel("Recent"):
            self._lately = ui.element("div").classes("alerts")
        if self._service.read_only:
            parts.forbid(add)
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        with self._trouble.told():
            alerts = sorted(await from_disk(self._service.alerts), key=lambda each: each.order)
            rules = await from_disk(self._service.rules)
            notifiers = await from_disk(self._service.notifiers)
            mutes = {mute.rule: mute.until_ms for mute in await from_disk(self._service.mutes)}
            self._problem.show(self._service.alerting_problem() or "")
            self._show_alerts(alerts)
            self._rules.show([_rule_row(rule, mutes.get(rule.name)) for rule in rules])
            self._notifiers.show([_notifier_row(each) for each in notifiers])
            self._notifiers_panel.set_visibility(bool(notifiers))

    def _show_alerts(self, alerts: list[AlertState]) -> None:
        minute = int(time.time() // 30)
        fresh = (tuple(alerts), minute)  # redraw texts such as "5 min ago" every minute
        if fresh == self._drawn:
            return
        self._drawn = fresh
        self._now.clear()
        with self._now:
            present = [each for each in alerts if each.phase is not Phase.RESOLVED]
            for each in present:
                _draw_alert(each)
            if not present:
                parts.empty("Nothing fires.", "Rules are evaluated at every look at the stream.")
        self._lately.clear()
        with self._lately:
            resolved = [each for each in alerts if each.phase is Phase.RESOLVED]
            for each in resolved[:_SHOWN_RESOLVED]:
                _draw_alert(each)
            if not resolved:
                parts.label("Nothing fired recently.").classes("about")

    async def _add_rule(self) -> None:
        await RuleDialog(self._console, None).open()
        await self._update()

    async def _test_notifier(self, row: tables.Row) -> None:
        name = str(row.get("name", ""))
        if self._service.read_only:
            parts.say(parts.READ_ONLY)
            return
        if not await parts.ask(f"Test {name}?", "It receives a test message.", action="Test"):
            return
        async with parts.saying_errors():
            complaint = await in_background(self._service.test_notifier, person(self._console), name)
            parts.say(complaint or f"{name} works.", "warn" if complaint else "good")
        await self._update()

    async def _open_rule(self, row: tables.Row) -> None:
        async with parts.saying_errors():
            rules = await from_disk(self._service.rules)
            rule = next((each for each in rules if each.name == row.get("name")), None)
            if rule is None:
                parts.say("That rule no longer exists.", "warn")
            else:
                await self._show_rule(rule)
        await self._update()

    async def _show_rule(self, rule: Rule) -> None:
        is_fixed = self._service.read_only
        with parts.drawn_dialog(rule.name) as dialog:
            parts.facts(
                [
                    ("Fires when", threshold_text(rule)),
                    ("For", rule.match + (f", but not {rule.unless}" if rule.unless else "")),
                    ("True for", texts.duration_text(rule.for_s)),
                    ("Resolved after", texts.duration_text(rule.quiet_s)),
                    ("Severity", str(rule.severity)),
                    ("Notifies", ", ".join(rule.notify) or "nobody"),
                ]
            )
            parts.label("Mute: alerts are shown, but nobody is notified.").classes("about")
            with parts.toolbar():
                for label, duration_s in MUTES_S.items():
                    parts.button(label, lambda duration_s=duration_s: dialog.submit(("mute", duration_s))).set_enabled(
                        not is_fixed
                    )
                parts.button("Unmute", lambda: dialog.submit(("mute", 0))).set_enabled(not is_fixed)
            with parts.dialog_buttons(dialog, "Close"):
                parts.button("Remove", lambda: dialog.submit(("remove", 0)), kind="danger").set_enabled(not is_fixed)
                parts.button("Edit", lambda: dialog.submit(("edit", 0)), kind="primary").set_enabled(not is_fixed)
        chosen = await parts.until_closed(dialog)
        match chosen:
            case ("mute", duration_s):
                until_ms = int((time.time() + duration_s) * 1000) if duration_s else 0
                await in_background(self._service.mute, person(self._console), rule.name, until_ms)
                parts.say(
                    f"{rule.name} is muted for {texts.duration_text(duration_s)}." if duration_s else "Unmuted.", "good"
                )
            case ("edit", _):
                await RuleDialog(self._console, rule).open()
            case ("remove", _):
                text = "Its firing alerts are resolved. It is removed from the console's file of rules."
                if await parts.ask(f"Remove rule {rule.name}?", text, action="Remove", is_dangerous=True):
                    await in_background(self._service.remove_rule, person(self._console), rule.name)
                    parts.say(f"Rule {rule.name} is removed.", "good")


def _draw_alert(alert: AlertState) -> None:
    tone = "plain" if alert.phase is Phase.RESOLVED else "bad" if alert.severity is Severity.CRITICAL else "warn"
    with ui.element("div").classes(f"alert alert-{tone}"):
        with ui.element("div").classes("alert-head"):
            parts.badge(str(alert.phase), "plain" if alert.phase is Phase.PENDING else tone)  # type: ignore[arg-type]
            parts.badge(str(alert.severity))
            parts.label(alert.rule).classes("alert-rule")
            if alert.subject:
                _draw_subject(alert)
            parts.label(texts.ago_text(alert.since_ms)).classes("about")
            if alert.muted_until_ms is not None and alert.muted_until_ms > time.time() * 1000:
                parts.badge(f"muted until {texts.time_text(alert.muted_until_ms)[:16]} UTC", "info")
        parts.label(alert.text).classes("alert-text")
        for told in alert.told:
            if told.error:
                parts.label(f"{told.notifier} could not be notified: {told.error}").classes("tone-text-bad")
            elif told.at_ms is not None:
                parts.label(f"{told.notifier} was notified {texts.ago_text(told.at_ms)}: {told.phase}").classes("about")


def _draw_subject(alert: AlertState) -> None:
    noun = _SUBJECT_PAGES.get(alert.kind)
    if noun is None:
        parts.label(alert.subject).classes("alert-subject")
    else:
        ui.link(alert.subject, texts.path_to(noun, alert.subject)).classes("link alert-subject")


def _rule_row(rule: Rule, muted_until_ms: int | None) -> tables.Row:
    is_muted = muted_until_ms is not None and muted_until_ms > time.time() * 1000
    return {
        "name": rule.name,
        "when": threshold_text(rule),
        "match": rule.match + (f" not {rule.unless}" if rule.unless else ""),
        "severity": str(rule.severity),
        "severity_tone": "bad" if rule.severity is Severity.CRITICAL else "warn",
        "notify": ", ".join(rule.notify) or "nobody",
        "muted": f"until {texts.time_text(muted_until_ms)[:16]}" if is_muted else "",
        "muted_tone": "info",
    }


def _notifier_row(state: NotifierState) -> tables.Row:
    return {
        "name": state.name,
        "type": state.type,
        "target": state.target,
        "sent": state.sent,
        "sent_ms": state.sent_ms,
        "state": f"failed {state.failures} times" if state.failures else "works" if state.sent else "not used yet",
        "state_tone": "bad" if state.failures else "good" if state.sent else "plain",
        "error": state.error,
    }
