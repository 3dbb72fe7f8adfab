"""What became of the rules: alerts that may fire, fire, or fired lately; and how those who are told were told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.observe.alerts.rules import Kind, Severity


class Phase(StrEnum):
    PENDING = "pending"
    """The rule holds, but not yet for long enough."""
    FIRING = "firing"
    RESOLVED = "resolved"
    """It fired, and does not hold any more."""


@dataclass(frozen=True, slots=True)
class Told:
    """How one notifier was told of an alert."""

    notifier: str
    phase: Phase | None
    """What it was last told successfully: that it fires, or that it is resolved; None: nothing yet."""
    at_ms: int | None
    """When that was."""
    error: str | None = None
    """Why the latest attempt failed. It goes on trying."""


@dataclass(frozen=True, slots=True)
class AlertState:
    """One rule about one thing."""

    rule: str
    kind: Kind
    subject: str
    """The name of the group, topic, pipeline or place; empty for the stream itself."""
    severity: Severity
    phase: Phase
    since_ms: int
    """When this phase began."""
    fired_ms: int | None
    """When it fired; None while it is pending."""
    value: float
    """As last seen, in the unit of the kind."""
    threshold: float
    text: str
    """One sentence on what is so, and what to do. Holds names as they come: escape it."""
    muted_until_ms: int | None = None
    """It is shown, but nobody is told until then."""
    told: tuple[Told, ...] = ()

    @property
    def is_firing(self) -> bool:
        return self.phase is Phase.FIRING

    @property
    def order(self) -> tuple[int, int, int, str, str]:
        """What needs attention first comes first."""
        phase = (Phase.FIRING, Phase.PENDING, Phase.RESOLVED).index(self.phase)
        return phase, 0 if self.severity is Severity.CRITICAL else 1, -self.since_ms, self.rule, self.subject


@dataclass(frozen=True, slots=True)
class NotifierState:
    """How a notifier gets on."""

    name: str
    type: str
    """log, webhook or email."""
    target: str
    """Where it goes, without anything secret."""
    sent: int = 0
    """Messages that arrived, since this process began."""
    failures: int = 0
    """Attempts that failed since the last that did not."""
    error: str | None = None
    """Why the latest attempt failed."""
    sent_ms: int | None = None
    """When the last message arrived."""
