"""Who was told what, so that everybody is told once that something fires and once that it is resolved.

Nothing is queued. What is to be said follows from the alerts as they are and from what was said before; it can neither
pile up nor get lost while a notifier is out of reach, and a message is always about the present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from penstock.observe.alerts.judge import Alert, Key
from penstock.observe.alerts.messages import MOST_IN_A_MESSAGE, Item
from penstock.observe.alerts.settings import NotifierSettings
from penstock.observe.alerts.states import Phase, Told

IsMuted = Callable[[str, str], bool]
"""Whether alerts of this rule about this subject are muted."""


class Line(msgspec.Struct):
    """What one notifier knows of one alert."""

    rule: str
    subject: str
    notifier: str
    phase: Phase | None = None
    """What it was last told; None: nothing."""
    fired_ms: int | None = None
    """Of the firing that it was told of."""
    at_ms: int | None = None
    tried_fired_ms: int | None = None
    """Of the firing that somebody tried to tell it of."""
    error: str | None = None


class Ledger:
    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self._lines = {(line.rule, line.subject, line.notifier): line for line in lines}

    @property
    def lines(self) -> list[Line]:
        return list(self._lines.values())

    def due(self, alerts: Iterable[Alert], to: NotifierSettings, now_ms: int, is_muted: IsMuted) -> tuple[Item, ...]:
        """What this notifier is to be told now, the gravest first."""
        items = []
        for alert in alerts:
            if to.name not in alert.rule.notify or alert.phase is Phase.PENDING or alert.fired_ms is None:
                continue
            line = self._lines.get((*alert.key, to.name))
            if not self._is_due(alert, line, to.repeat_s, now_ms) or is_muted(*alert.key):
                continue
            is_repeated = alert.phase is Phase.FIRING and line is not None and line.fired_ms == alert.fired_ms
            items.append(_item(alert, alert.fired_ms, is_repeated))
        items.sort(key=lambda item: (item.phase is Phase.RESOLVED, item.severity, item.at_ms, item.rule, item.subject))
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

    def told(self, alert: Alert) -> tuple[Told, ...]:
        """For each notifier of the alert what became of it."""
        found = []
        for notifier in alert.rule.notify:
            line = self._lines.get((*alert.key, notifier))
            if line is None or alert.fired_ms is None:
                found.append(Told(notifier, None, None))
            else:
                is_about_this = line.fired_ms == alert.fired_ms
                found.append(
                    Told(
                        notifier,
                        line.phase if is_about_this else None,
                        line.at_ms if is_about_this else None,
                        line.error,
                    )
                )
        return tuple(found)

    def keep(self, keys: set[Key]) -> None:
        """Forget what was said of alerts that are no more."""
        self._lines = {key: line for key, line in self._lines.items() if key[:2] in keys}

    @staticmethod
    def _is_due(alert: Alert, line: Line | None, repeat_s: float, now_ms: int) -> bool:
        if alert.phase is Phase.FIRING:
            if line is None or line.fired_ms != alert.fired_ms or line.phase is not Phase.FIRING:
                return True
            return repeat_s > 0 and line.at_ms is not None and now_ms - line.at_ms >= repeat_s * 1000
        if line is None:
            return False  # it came and went while it was muted, or before anybody was asked to tell
        was_tried_in_vain = line.tried_fired_ms == alert.fired_ms and line.fired_ms != alert.fired_ms
        return line.phase is Phase.FIRING or was_tried_in_vain

    def _line(self, item: Item, notifier: str) -> Line:
        key = (item.rule, item.subject, notifier)
        return self._lines.setdefault(key, Line(*key))


def _item(alert: Alert, fired_ms: int, is_repeated: bool) -> Item:
    return Item(
        rule=alert.rule.name,
        kind=alert.rule.kind,
        subject=alert.subject,
        severity=alert.rule.severity,
        phase=alert.phase,
        fired_ms=fired_ms,
        at_ms=alert.since_ms,
        value=alert.value,
        threshold=alert.rule.threshold,
        text=alert.text,
        is_repeated=is_repeated,
    )
