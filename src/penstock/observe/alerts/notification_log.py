"""Who was notified of what, so that each notifier is told once that an alert fires and once that it is resolved.

Nothing is queued. What is due follows from the current alerts and from what was sent before; it can neither pile up
nor get lost while a notifier is unreachable, and a message always describes the present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from penstock.observe.alerts.evaluator import Alert, Key
from penstock.observe.alerts.messages import MOST_IN_A_MESSAGE, Item
from penstock.observe.alerts.rules import NotificationOutcome, Phase
from penstock.observe.alerts.settings import NotifierSettings

IsMuted = Callable[[str, str], bool]
"""Whether alerts of this rule about this subject are muted."""


class NotificationState(msgspec.Struct):
    rule: str
    subject: str
    notifier: str
    phase: Phase | None = None
    """What it was last told; None: nothing."""
    fired_ms: int | None = None
    """When the alert it was told of fired."""
    at_ms: int | None = None
    tried_fired_ms: int | None = None
    """When the alert of the last attempt fired."""
    error: str | None = None


class NotificationLog:
    def __init__(self, lines: Iterable[NotificationState] = ()) -> None:
        self._lines = {(line.rule, line.subject, line.notifier): line for line in lines}

    @property
    def lines(self) -> list[NotificationState]:
        return list(self._lines.values())

    def due(self, alerts: Iterable[Alert], to: NotifierSettings, now_ms: int, is_muted: IsMuted) -> tuple[Item, ...]:
        """What this notifier should be told now, most severe first."""
        items = []
        for alert in alerts:
            if to.name not in alert.rule.notify or alert.phase is Phase.PENDING or alert.fired_ms is None:
                continue
            line = self._lines.get((*alert.key, to.name))
            if not self._is_due(alert, line, to.repeat_s, now_ms) or is_muted(*alert.key):
                continue
            is_repeated = alert.phase is Phase.FIRING and line is not None and line.fired_ms == alert.fired_ms
            items.append(Item(replace(alert.state(), phase=alert.phase), alert.fired_ms, is_repeated))
        items.sort(key=_order)
        return tuple(items[:MOST_IN_A_MESSAGE])

    def arrived(self, notifier: str, items: Iterable[Item], at_ms: int) -> None:
        for item in items:
            line = self._line(item, notifier)
            line.phase = item.phase
            line.fired_ms = line.tried_fired_ms = item.fired_ms
            line.at_ms = at_ms
            line.error = None

    def failed(self, notifier: str, items: Iterable[Item], error: str) -> None:
        for item in items:
            line = self._line(item, notifier)
            line.tried_fired_ms = item.fired_ms
            line.error = error

    def told(self, alert: Alert) -> tuple[NotificationOutcome, ...]:
        """The outcome for each notifier of the alert."""
        found = []
        for notifier in alert.rule.notify:
            line = self._lines.get((*alert.key, notifier))
            if line is None or alert.fired_ms is None:
                found.append(NotificationOutcome(notifier, None, None))
            else:
                is_about_this = line.fired_ms == alert.fired_ms
                found.append(
                    NotificationOutcome(
                        notifier,
                        line.phase if is_about_this else None,
                        line.at_ms if is_about_this else None,
                        line.error,
                    )
                )
        return tuple(found)

    def keep(self, keys: set[Key]) -> None:
        """Forget all alerts but these."""
        self._lines = {key: line for key, line in self._lines.items() if key[:2] in keys}

    @staticmethod
    def _is_due(alert: Alert, line: NotificationState | None, repeat_s: float, now_ms: int) -> bool:
        if alert.phase is Phase.FIRING:
            if line is None or line.fired_ms != alert.fired_ms or line.phase is not Phase.FIRING:
                return True
            return repeat_s > 0 and line.at_ms is not None and now_ms - line.at_ms >= repeat_s * 1000
        if line is None:
            return False  # it fired and was resolved while muted, or before this notifier was configured
        was_tried_in_vain = line.tried_fired_ms == alert.fired_ms and line.fired_ms != alert.fired_ms
        return line.phase is Phase.FIRING or was_tried_in_vain

    def _line(self, item: Item, notifier: str) -> NotificationState:
        key = (item.alert.rule, item.alert.subject, notifier)
        return self._lines.setdefault(key, NotificationState(*key))


def _order(item: Item) -> tuple[bool, str, int, str, str]:
    alert = item.alert
    return item.phase is Phase.RESOLVED, alert.severity, alert.since_ms, alert.rule, alert.subject
