"""The alerts: what fires now, what fired lately, the rules behind them, and whether those who are told were told."""

from __future__ import annotations

import time
from typing import Final

from nicegui import ui

from penstock.console.web import parts
from penstock.console.web.frame import Console, frame, live, person
from penstock.console.web.pages.alert_rules import RuleDialog, threshold_text
from penstock.console.web.pages.looks import Trouble, until_closed, wear_details
from penstock.observe.alerts.rules import Kind, Rule, Severity
from penstock.observe.alerts.states import AlertState, NotifierState, Phase

MUTES_S: Final = {"15 min": 900, "1 h": 3_600, "8 h": 28_800, "24 h": 86_400, "7 d": 604_800}
_SHOWN_RESOLVED: Final = 50
_RULES: Final = (
    parts.Column("name", "Rule", "mono"),
    parts.Column("when", "Fires when", "sentence"),
    parts.Column("match", "For", "mono", on_phone=False),
    parts.Column("severity", "Severity", "badge", on_phone=False),
    parts.Column("notify", "Tells", "mono", on_phone=False),
    parts.Column("muted", "Muted", "badge"),
)
_NOTIFIERS: Final = (
    parts.Column("name", "Notifier", "mono"),
    parts.Column("type", "Type"),
    parts.Column("target", "To", "mono", on_phone=False),
    parts.Column("sent", "Sent", "number"),
    parts.Column("sent_ms", "Last sent", on_phone=False),
    parts.Column("state", "State", "badge"),
    parts.Column("error", "Error", "wide", on_phone=False),
)
_SUBJECT_PAGES: Final = {
    Kind.LAG_S: "groups",
    Kind.TIME_TO_LOSS_S: "groups",
    Kind.LOST: "groups",
    Kind.LETTERS_RATE: "letters",
    Kind.LETTERS_WAITING: "letters",
    Kind.TOPIC_SILENT: "topics",
}


def register(console: Console) -> None:
    @ui.page("/alerts")
    async def alerts_page() -> None:
        wear_details()
        with frame(console, "Alerts", "alerts"):
            parts.title("Alerts", "What needs somebody, the rules that say so, and who is told.")
            await _Alerts(console).draw()


class _Alerts:
    """One open page of alerts."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._service = console.service
        self._drawn: tuple[object, ...] | None = None

    async def draw(self) -> None:
        self._trouble = Trouble()
        self._problem = ui.label().classes("notice-inline tone-warn").props('role="alert"')
        with parts.panel("Now"):
            self._now = ui.element("div").classes("alerts")
        with parts.panel("Rules", "Click a rule to change, mute or remove it."):
            self._rules = parts.table(_RULES, (), key="name", sort_by="name", on_click=self._open_rule)
            with parts.toolbar():
                add = parts.button("Add rule", self._add_rule, kind="primary", icon="add")
        about = "Set in the file of rules. Click one to have it say that it works."
        with parts.panel("Notifiers", about) as self._notifiers_panel:
            self._notifiers = parts.table(_NOTIFIERS, (), key="name", sort_by="name", on_click=self._test_notifier)
        with parts.panel("Lately"):
            self._lately = ui.element("div").classes("alerts")
        if self._service.read_only:
            parts.forbid(add)
        await self._update()
        live(self._update)

    async def _update(self) -> None:
        with self._trouble.told():
            alerts = sorted(await parts.in_background(self._service.alerts), key=lambda each: each.order)
            rules = await parts.in_background(self._service.rules)
            notifiers = await parts.in_background(self._service.notifiers)
            mutes = {mute.rule: mute.until_ms for mute in await parts.in_background(self._service.mutes)}
            problem = self._service.alerting_problem()
            self._problem.set_text(problem or "")
            self._problem.set_visibility(problem is not None)
            self._show_alerts(alerts)
            self._rules.show([_rule_row(rule, mutes.get(rule.name)) for rule in rules])
            self._notifiers.show([_notifier_row(each) for each in notifiers])
            self._notifiers_panel.set_visibility(bool(notifiers))

    def _show_alerts(self, alerts: list[AlertState]) -> None:
        minute = int(time.time() // 30)
        fresh = (tuple(alerts), minute)  # texts such as "5 min ago" are drawn again now and then
        if fresh == self._drawn:
            return
        self._drawn = fresh
        self._now.clear()
        with self._now:
            present = [each for each in alerts if each.phase is not Phase.RESOLVED]
            for each in present:
                _draw_alert(each)
            if not present:
                parts.empty("Nothing fires.", "Rules are looked at with every look at the stream.")
        self._lately.clear()
        with self._lately:
            resolved = [each for each in alerts if each.phase is Phase.RESOLVED]
            for each in resolved[:_SHOWN_RESOLVED]:
                _draw_alert(each)
            if not resolved:
                parts.label("Nothing fired lately.").classes("about")

    async def _add_rule(self) -> None:
        await RuleDialog(self._console, None).open()
        await self._update()

    async def _test_notifier(self, row: parts.Row) -> None:
        name = str(row.get("name", ""))
        if self._service.read_only:
            parts.say(parts.READ_ONLY)
            return
        if not await parts.ask(f"Test {name}?", "It is told that this is a test.", action="Test"):
            return
        async with parts.saying_errors():
            complaint = await parts.in_background(self._service.test_notifier, person(self._console), name)
            parts.say(complaint or f"{name} works.", "warn" if complaint else "good")
        await self._update()

    async def _open_rule(self, row: parts.Row) -> None:
        async with parts.saying_errors():
            rules = await parts.in_background(self._service.rules)
            rule = next((each for each in rules if each.name == row.get("name")), None)
            if rule is None:
                parts.say("That rule is gone meanwhile.", "warn")
            else:
                await self._show_rule(rule)
        await self._update()

    async def _show_rule(self, rule: Rule) -> None:
        is_fixed = self._service.read_only
        with ui.dialog() as dialog, ui.card().classes("dialog"):
            parts.heading("h2", rule.name)
            parts.facts(
                [
                    ("Fires when", threshold_text(rule)),
                    ("For", rule.match + (f", but not {rule.unless}" if rule.unless else "")),
                    ("True for", parts.duration_text(rule.for_s)),
                    ("Resolved after", parts.duration_text(rule.quiet_s)),
                    ("Severity", str(rule.severity)),
                    ("Tells", ", ".join(rule.notify) or "nobody"),
                ]
            )
            parts.label("Mute: it is shown, but nobody is told.").classes("about")
            with parts.toolbar():
                for label, duration_s in MUTES_S.items():
                    parts.button(label, lambda duration_s=duration_s: dialog.submit(("mute", duration_s))).set_enabled(
                        not is_fixed
                    )
                parts.button("Unmute", lambda: dialog.submit(("mute", 0))).set_enabled(not is_fixed)
            with ui.element("div").classes("dialog-buttons"):
                parts.button("Close", dialog.close, kind="quiet")
                parts.button("Remove", lambda: dialog.submit(("remove", 0)), kind="danger").set_enabled(not is_fixed)
                parts.button("Edit", lambda: dialog.submit(("edit", 0)), kind="primary").set_enabled(not is_fixed)
        chosen = await until_closed(dialog)
        match chosen:
            case ("mute", duration_s):
                until_ms = int((time.time() + duration_s) * 1000) if duration_s else 0
                await parts.in_background(self._service.mute, person(self._console), rule.name, until_ms)
                parts.say(
                    f"{rule.name} is muted for {parts.duration_text(duration_s)}." if duration_s else "Unmuted.", "good"
                )
            case ("edit", _):
                await RuleDialog(self._console, rule).open()
            case ("remove", _):
                text = "What it says about fires no more. Rules are kept in the console's file of rules."
                if await parts.ask(f"Remove rule {rule.name}?", text, action="Remove", is_dangerous=True):
                    await parts.in_background(self._service.remove_rule, person(self._console), rule.name)
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
            parts.label(parts.ago_text(alert.since_ms)).classes("about")
            if alert.muted_until_ms is not None and alert.muted_until_ms > time.time() * 1000:
                parts.badge(f"muted until {parts.time_text(alert.muted_until_ms)[:16]} UTC", "info")
        parts.label(alert.text).classes("alert-text")
        for told in alert.told:
            if told.error:
                parts.label(f"{told.notifier} could not be told: {told.error}").classes("tone-text-bad")
            elif told.at_ms is not None:
                parts.label(f"{told.notifier} was told {parts.ago_text(told.at_ms)}: {told.phase}").classes("about")


def _draw_subject(alert: AlertState) -> None:
    noun = _SUBJECT_PAGES.get(alert.kind)
    if noun is None:
        parts.label(alert.subject).classes("alert-subject")
    else:
        ui.link(alert.subject, parts.path_to(noun, alert.subject)).classes("link alert-subject")


def _rule_row(rule: Rule, muted_until_ms: int | None) -> parts.Row:
    is_muted = muted_until_ms is not None and muted_until_ms > time.time() * 1000
    return {
        "name": rule.name,
        "when": threshold_text(rule),
        "match": rule.match + (f" not {rule.unless}" if rule.unless else ""),
        "severity": str(rule.severity),
        "severity_tone": "bad" if rule.severity is Severity.CRITICAL else "warn",
        "notify": ", ".join(rule.notify) or "nobody",
        "muted": f"until {parts.time_text(muted_until_ms)[:16]}" if is_muted else "",
        "muted_tone": "info",
    }


def _notifier_row(state: NotifierState) -> parts.Row:
    return {
        "name": state.name,
        "type": state.type,
        "target": state.target,
        "sent": state.sent,
        "sent_ms": state.sent_ms,
        "sent_ms_text": parts.ago_text(state.sent_ms),
        "state": f"failed {state.failures} times" if state.failures else "works" if state.sent else "not used yet",
        "state_tone": "bad" if state.failures else "good" if state.sent else "plain",
        "error": state.error,
    }
