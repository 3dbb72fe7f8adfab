"""Evaluation of rules: one snapshot after the other in, alerts out. It has no clock of its own and does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.model.text import duration_text, shown_name
from penstock.observe.alerts.readings import Mark, Reading, RuleInput, Watched, is_watched, readings
from penstock.observe.alerts.rules import AlertState, Phase, Rule, RuleKind
from penstock.observe.facts import Snapshot, TopicFacts

MARGIN: Final = 0.1
"""A firing alert is resolved only when its value is better than the threshold by this much."""
LONGEST_GAP_S: Final = 300.0
"""At least twice the pause between two looks at the largest systems."""
RESOLVED_KEPT_MS: Final = 86_400_000
MOST_RESOLVED: Final = 1_000

Key = tuple[str, str]


class Alert(msgspec.Struct):
    """One rule about one subject, as the evaluator keeps it."""

    rule: Rule
    subject: str
    phase: Phase
    since_ms: int
    fired_ms: int | None = None
    held_since_s: float | None = None
    """On the evaluator's clock: since when the rule holds, while it waits to fire."""
    quiet_since_s: float | None = None
    """Since when the rule no longer holds, while the alert waits to be resolved."""
    value: float = 0.0
    text: str = ""

    @property
    def key(self) -> Key:
        return self.rule.name, self.subject

    def state(self) -> AlertState:
        # A resolved alert that holds again is pending; until it fires, notifiers keep what they were last told.
        is_coming = self.phase is Phase.RESOLVED and self.held_since_s is not None
        return AlertState(
            rule=self.rule.name,
            kind=self.rule.kind,
            subject=self.subject,
            severity=self.rule.severity,
            phase=Phase.PENDING if is_coming else self.phase,
            since_ms=self.since_ms,
            fired_ms=None if is_coming else self.fired_ms,
            value=self.value,
            threshold=self.rule.threshold,
            text=self.text,
        )


class EvaluatorState(msgspec.Struct):
    watched_s: float = 0.0
    passed_s: float = 0.0
    at_ms: int | None = None
    good_ms: int | None = None
    away_since_ms: int | None = None
    alerts: list[Alert] = []
    marks: dict[str, Mark] = {}


class Evaluator:
    """Evaluates snapshots in the order of their times.

    Durations are measured in watched time: time in which the stream is away, or in which no snapshot comes (a gap of
    more than `longest_gap_s`, as when a laptop sleeps), does not count. A snapshot with a problem holds old facts: it
    is evidence that the stream is away and nothing else, so no other alert fires, waits or is resolved by it.
    """

    def __init__(self, rules: Iterable[Rule] = (), *, longest_gap_s: float = LONGEST_GAP_S) -> None:
        self._rules = tuple(rules)
        self._longest_gap_s = longest_gap_s
        self._watched = Watched()
        self._memory = EvaluatorState()
        self._alerts: dict[Key, Alert] = {}

    @property
    def alerts(self) -> Sequence[Alert]:
        return list(self._alerts.values())

    def evaluate(self, snapshot: Snapshot) -> list[AlertState]:
        """All alerts after this snapshot: firing, then pending, then those resolved within a day."""
        self._let_time_pass(snapshot)
        if snapshot.problem is None:
            self._watched.see(snapshot, self._memory.watched_s, self._wants_topic)
        for rule in self._rules:
            if rule.kind is RuleKind.STREAM_AWAY:
                self._weigh_all(rule, [self._away(snapshot)], snapshot.at_ms, self._memory.passed_s)
            elif snapshot.problem is None:
                given = RuleInput(snapshot, self._watched, self._memory.watched_s)
                self._weigh_all(rule, readings(rule, given), snapshot.at_ms, self._memory.watched_s)
        self._end_those_without_a_rule(snapshot.at_ms)
        self._forget_old(snapshot.at_ms)
        return self.states()

    def states(self) -> list[AlertState]:
        return sorted((alert.state() for alert in self._alerts.values()), key=lambda state: state.order)

    def use(self, rules: Iterable[Rule]) -> None:
        """Use these rules from now on. Alerts of removed rules are resolved by the next snapshot."""
        self._rules = tuple(rules)

    def remember(self) -> EvaluatorState:
        memory = msgspec.structs.replace(self._memory)
        memory.alerts = list(self._alerts.values())
        memory.marks = self._watched.marks
        return memory

    def recall(self, memory: EvaluatorState) -> None:
        self._memory = memory
        self._alerts = {alert.key: alert for alert in memory.alerts}
        self._watched.marks = memory.marks

    def _let_time_pass(self, snapshot: Snapshot) -> None:
        memory = self._memory
        passed_s = self._between_s(memory.at_ms, snapshot.at_ms)
        memory.passed_s += passed_s
        memory.at_ms = snapshot.at_ms
        if snapshot.problem is None:
            memory.away_since_ms = None
            memory.watched_s += self._between_s(memory.good_ms, snapshot.at_ms)
            memory.good_ms = snapshot.at_ms
        else:
            memory.good_ms = None
            if memory.away_since_ms is None or memory.away_since_ms > snapshot.at_ms:
                memory.away_since_ms = snapshot.at_ms

    def _between_s(self, before_ms: int | None, at_ms: int) -> float:
        """0 when the clock was set back, or when the gap was too long."""
        passed_s = 0.0 if before_ms is None else (at_ms - before_ms) / 1000
        return passed_s if 0 < passed_s <= self._longest_gap_s else 0.0

    def _away(self, snapshot: Snapshot) -> Reading:
        if snapshot.problem is None or self._memory.away_since_ms is None:
            return Reading("", -1.0)  # below every threshold, also one of 0
        away_s = (snapshot.at_ms - self._memory.away_since_ms) / 1000
        return Reading(
            "", away_s, f"the stream has not answered for {duration_text(away_s)}: {shown_name(snapshot.problem)}"
        )

    def _wants_topic(self, topic: TopicFacts) -> bool:
        return any(is_watched(rule, topic) for rule in self._rules)

    def _weigh_all(self, rule: Rule, found: Iterable[Reading], at_ms: int, now_s: float) -> None:
        seen = set()
        for reading in found:
            seen.add(reading.subject)
            if reading.value is not None:
                self._weigh(rule, reading, at_ms, now_s)
        for alert in [alert for (name, subject), alert in self._alerts.items() if name == rule.name]:
            alert.rule = rule
            if alert.subject not in seen:
                self._quieten(alert, at_ms, now_s, None)

    def _weigh(self, rule: Rule, reading: Reading, at_ms: int, now_s: float) -> None:
        alert = self._alerts.get((rule.name, reading.subject))
        if _holds(rule, reading):
            if alert is None:
                alert = Alert(rule, reading.subject, Phase.PENDING, at_ms, held_since_s=now_s)
                self._alerts[alert.key] = alert
            self._hold(alert, rule, reading, at_ms, now_s)
        elif alert is not None:
            alert.rule = rule
            if alert.phase is Phase.FIRING and _is_near(rule, reading):
                self._show(alert, reading)
                alert.quiet_since_s = None
            else:
                self._quieten(alert, at_ms, now_s, reading)

    def _hold(self, alert: Alert, rule: Rule, reading: Reading, at_ms: int, now_s: float) -> None:
        alert.rule = rule
        alert.quiet_since_s = None
        self._show(alert, reading)
        if alert.phase is Phase.FIRING:
            return
        if alert.held_since_s is None:  # it was resolved and holds again
            alert.held_since_s = now_s
        if now_s - alert.held_since_s >= rule.for_s:
            alert.phase = Phase.FIRING
            alert.since_ms = alert.fired_ms = at_ms
            alert.held_since_s = None

    def _quieten(self, alert: Alert, at_ms: int, now_s: float, reading: Reading | None) -> None:
        """The rule does not hold at this moment. Without a reading, its subject is gone."""
        if alert.phase is Phase.PENDING:
            del self._alerts[alert.key]
            return
        if alert.phase is Phase.RESOLVED:
            alert.held_since_s = None
            return
        if reading is not None:
            alert.value = max(0.0, reading.value or 0.0)
        if alert.quiet_since_s is None:
            alert.quiet_since_s = now_s
        if now_s - alert.quiet_since_s >= alert.rule.quiet_s:
            _resolve(alert, at_ms)

    def _show(self, alert: Alert, reading: Reading) -> None:
        alert.value = max(0.0, reading.value or 0.0)
        alert.text = reading.text

    def _end_those_without_a_rule(self, at_ms: int) -> None:
        names = {rule.name for rule in self._rules}
        for alert in [alert for (name, _), alert in self._alerts.items() if name not in names]:
            if alert.phase is Phase.PENDING:
                del self._alerts[alert.key]
            elif alert.phase is Phase.FIRING:
                alert.text = "its rule was removed"
                _resolve(alert, at_ms)
            else:
                alert.held_since_s = None

    def _forget_old(self, at_ms: int) -> None:
        resolved = sorted(
            (alert for alert in self._alerts.values() if alert.phase is Phase.RESOLVED and alert.held_since_s is None),
            key=lambda alert: alert.since_ms,
        )
        surplus = len(resolved) - MOST_RESOLVED
        for number, alert in enumerate(resolved):
            if number < surplus or at_ms - alert.since_ms > RESOLVED_KEPT_MS:
                del self._alerts[alert.key]


def _resolve(alert: Alert, at_ms: int) -> None:
    alert.phase = Phase.RESOLVED
    alert.since_ms = at_ms
    alert.quiet_since_s = alert.held_since_s = None


def _holds(rule: Rule, reading: Reading) -> bool:
    assert reading.value is not None
    if rule.kind.is_worse_when_lower:
        return reading.value <= rule.threshold
    return reading.is_certain or reading.value >= rule.threshold


def _is_near(rule: Rule, reading: Reading) -> bool:
    """Whether it has improved by so little that it may get worse again at the next look."""
    assert reading.value is not None
    if rule.kind is RuleKind.STREAM_AWAY:
        return False
    if rule.kind.is_worse_when_lower:
        return reading.value <= rule.threshold * (1 + MARGIN)
    return reading.value > rule.threshold * (1 - MARGIN)
