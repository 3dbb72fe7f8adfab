"""The text of notifications: one message for all changes of one moment, as lines, as a subject, and as JSON."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.model.text import count_text, duration_text, shown_name
from penstock.observe.alerts.rules import AlertState, Phase, RuleKind, Severity

MOST_IN_A_MESSAGE: Final = 100
"""The rest go into the next message."""
LINES_IN_TEXT: Final = 20
TEST_RULE: Final = "test"


@dataclass(frozen=True, slots=True)
class Item:
    """An alert that fires or is resolved, as it was when the message was composed."""

    alert: AlertState
    fired_ms: int
    is_repeated: bool = False
    """Sent before; it still fires."""

    @property
    def phase(self) -> Phase:
        return self.alert.phase

    @property
    def line(self) -> str:
        alert = self.alert
        if self.phase is Phase.RESOLVED:
            lasted = duration_text((alert.since_ms - self.fired_ms) / 1000)
            return f"resolved {alert.rule}, after {lasted}. It was: {alert.text}"
        still = "still " if self.is_repeated else ""
        return f"{still}firing {alert.rule} ({alert.severity}): {alert.text}"


@dataclass(frozen=True, slots=True)
class Message:
    stream: str
    """Which notifier, for readers of several."""
    at_ms: int
    items: tuple[Item, ...]
    is_test: bool = False

    @property
    def id(self) -> str:
        """The same for the same news, so that receivers can detect duplicates."""
        news = [
            (item.alert.rule, item.alert.subject, item.phase, item.fired_ms, item.is_repeated) for item in self.items
        ]
        when = self.at_ms if self.is_test or any(item.is_repeated for item in self.items) else 0
        return hashlib.sha256(msgspec.json.encode([self.stream, when, news])).hexdigest()[:32]

    @property
    def firing(self) -> int:
        return sum(item.phase is Phase.FIRING for item in self.items)

    @property
    def subject(self) -> str:
        """One line with the most important fact."""
        if self.is_test:
            return "[penstock] test message"
        resolved = len(self.items) - self.firing
        counts = [f"{self.firing} firing"] * bool(self.firing) + [f"{resolved} resolved"] * bool(resolved)
        first = self.items[0].alert
        about = f": {first.rule} {shown_name(first.subject)}".rstrip() + (", ..." if len(self.items) > 1 else "")
        return f"[penstock] {', '.join(counts)}{about}"

    def lines(self) -> list[str]:
        """One line per alert, with its time."""
        return [f"{time_text(item.alert.since_ms)} {item.line}" for item in self.items]

    def text(self) -> str:
        """For people: the subject, the alerts, and the stream."""
        lines = [item.line for item in self.items[:LINES_IN_TEXT]]
        if len(self.items) > LINES_IN_TEXT:
            lines.append(f"and {count_text(len(self.items) - LINES_IN_TEXT, 'alert')} more")
        return "\n".join([self.subject, *lines, *([f"stream: {self.stream}"] if self.stream else [])])

    def document(self) -> dict[str, Any]:
        """For programs. `text` comes first, where chat services look for it."""
        return {
            "text": self.text(),
            "id": self.id,
            "status": "test" if self.is_test else "firing" if self.firing else "resolved",
            "stream": self.stream,
            "at": time_text(self.at_ms),
            "alerts": [
                {
                    "rule": item.alert.rule,
                    "kind": item.alert.kind,
                    "subject": item.alert.subject,
                    "severity": item.alert.severity,
                    "status": item.phase,
                    "fired_at": time_text(item.fired_ms),
                    "at": time_text(item.alert.since_ms),
                    "value": item.alert.value,
                    "threshold": item.alert.threshold,
                    "unit": item.alert.kind.unit,
                    "text": item.alert.text,
                    "repeated": item.is_repeated,
                }
                for item in self.items
            ],
        }


def trial_message(notifier: str, stream: str, at_ms: int) -> Message:
    """What `penstock alerts test` sends."""
    text = f"this is a test of the notifier {notifier}; nothing is wrong"
    alert = AlertState(
        TEST_RULE, RuleKind.LAG, TEST_RULE, Severity.WARNING, Phase.FIRING, at_ms, at_ms, 0.0, threshold=1.0, text=text
    )
    return Message(stream, at_ms, (Item(alert, at_ms),), is_test=True)


def time_text(at_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
