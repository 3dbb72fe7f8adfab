"""What is said about alerts: one message for everything that changed at once, as lines, as a subject, and as JSON."""

from __future__ import annotations

import datetime
import hashlib
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.observe.alerts.rules import Kind, Severity
from penstock.observe.alerts.states import Phase
from penstock.observe.alerts.wording import count_text, duration_text, shown_name

MOST_IN_A_MESSAGE: Final = 100
"""More go into the next message."""
LINES_IN_TEXT: Final = 20
TEST_RULE: Final = "test"


@dataclass(frozen=True, slots=True)
class Item:
    """One alert, as it was when the message was made."""

    rule: str
    kind: Kind
    subject: str
    severity: Severity
    phase: Phase
    """FIRING or RESOLVED."""
    fired_ms: int
    at_ms: int
    """When it fired, or was resolved."""
    value: float
    threshold: float
    text: str
    is_repeated: bool = False
    """Said before; it still fires."""

    @property
    def line(self) -> str:
        if self.phase is Phase.RESOLVED:
            lasted = duration_text((self.at_ms - self.fired_ms) / 1000)
            return f"resolved {self.rule}, after {lasted}. It was: {self.text}"
        still = "still " if self.is_repeated else ""
        return f"{still}firing {self.rule} ({self.severity}): {self.text}"


@dataclass(frozen=True, slots=True)
class Message:
    """What a notifier is to say."""

    stream: str
    """Which one, for those who have several."""
    at_ms: int
    items: tuple[Item, ...]
    is_test: bool = False

    @property
    def id(self) -> str:
        """The same for the same news, so that who gets a message twice can tell."""
        news = [(item.rule, item.subject, item.phase, item.fired_ms, item.is_repeated) for item in self.items]
        when = self.at_ms if self.is_test or any(item.is_repeated for item in self.items) else 0
        return hashlib.sha256(msgspec.json.encode([self.stream, when, news])).hexdigest()[:32]

    @property
    def firing(self) -> int:
        return sum(item.phase is Phase.FIRING for item in self.items)

    @property
    def subject(self) -> str:
        """One line that says the most important."""
        if self.is_test:
            return "[penstock] test message"
        resolved = len(self.items) - self.firing
        counts = [f"{self.firing} firing"] * bool(self.firing) + [f"{resolved} resolved"] * bool(resolved)
        first = self.items[0]
        about = f": {first.rule} {shown_name(first.subject)}".rstrip() + (", ..." if len(self.items) > 1 else "")
        return f"[penstock] {', '.join(counts)}{about}"

    def lines(self) -> list[str]:
        """One line each, with the time at which it happened."""
        return [f"{time_text(item.at_ms)} {item.line}" for item in self.items]

    def text(self) -> str:
        """For people: the subject, what happened, and where."""
        lines = [item.line for item in self.items[:LINES_IN_TEXT]]
        if len(self.items) > LINES_IN_TEXT:
            lines.append(f"and {count_text(len(self.items) - LINES_IN_TEXT, 'alert')} more")
        return "\n".join([self.subject, *lines, *([f"stream: {self.stream}"] if self.stream else [])])

    def document(self) -> dict[str, Any]:
        """For programs. `text` stands at the top, where chat services look for it."""
        return {
            "text": self.text(),
            "id": self.id,
            "status": "test" if self.is_test else "firing" if self.firing else "resolved",
            "stream": self.stream,
            "at": time_text(self.at_ms),
            "alerts": [
                {
                    "rule": item.rule,
                    "kind": item.kind,
                    "subject": item.subject,
                    "severity": item.severity,
                    "status": item.phase,
                    "fired_at": time_text(item.fired_ms),
                    "at": time_text(item.at_ms),
                    "value": item.value,
                    "threshold": item.threshold,
                    "unit": item.kind.unit,
                    "text": item.text,
                    "repeated": item.is_repeated,
                }
                for item in self.items
            ],
        }


def trial_message(notifier: str, stream: str, at_ms: int) -> Message:
    """What `penstock alerts test` sends: nothing is wrong."""
    text = f"this is a test of the notifier {notifier}; nothing is wrong"
    item = Item(
        TEST_RULE,
        Kind.LAG,
        TEST_RULE,
        Severity.WARNING,
        Phase.FIRING,
        at_ms,
        at_ms,
        value=0.0,
        threshold=1.0,
        text=text,
    )
    return Message(stream, at_ms, (item,), is_test=True)


def time_text(at_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
