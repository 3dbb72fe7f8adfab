"""Alert rules: pure data, validated on construction."""

from __future__ import annotations

import fnmatch
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from penstock.errors import ConfigError

LONGEST_NAME: Final = 100
LONGEST_S: Final = 366 * 86_400.0
"""A rule that waits for longer than a year has the wrong unit."""


class Severity(StrEnum):
    WARNING = "warning"
    """Somebody should look today."""
    CRITICAL = "critical"
    """Somebody should look now."""


class RuleKind(StrEnum):
    """What a rule measures, and the unit of its threshold."""

    LAG_S = "lag_s"
    """A group whose oldest unread record has been waiting for this many seconds or more."""
    LAG = "lag"
    """A group or pipeline that is this many records behind or more."""
    TIME_TO_LOSS_S = "time_to_loss_s"
    """A group that retention will overtake in this many seconds or fewer, or a capture whose database will remove
    changes that are not captured."""
    LETTERS_RATE = "letters_rate"
    """A dead-letter store that receives this many letters a minute or more."""
    LETTERS_WAITING = "letters_waiting"
    """A dead-letter store in which this many letters wait or more."""
    STALLED = "stalled"
    """A group or pipeline that has records to read and no progress for this many seconds, a query or a capture that
    failed, or a capture that has not reported for this many seconds."""
    TOPIC_SILENT = "topic_silent"
    """A topic with no append for this many seconds."""
    LOST = "lost"
    """A group that lost this many records or more because they expired unread, or a capture that lost changes."""
    STREAM_AWAY = "stream_away"
    """The stream has not answered for this many seconds."""

    @property
    def is_worse_when_lower(self) -> bool:
        return self is RuleKind.TIME_TO_LOSS_S

    @property
    def unit(self) -> str:
        """The unit of the threshold, for people."""
        return _UNITS.get(self, "s")

    @property
    def subjects(self) -> str:
        """What `match` is compared with, for people."""
        return _SUBJECTS[self]


_UNITS: Final = {
    RuleKind.LAG: "records",
    RuleKind.LETTERS_RATE: "letters/min",
    RuleKind.LETTERS_WAITING: "letters",
    RuleKind.LOST: "records",
}
_SUBJECTS: Final = {
    RuleKind.LAG_S: "groups",
    RuleKind.LAG: "groups and pipelines",
    RuleKind.TIME_TO_LOSS_S: "groups and captures",
    RuleKind.LETTERS_RATE: "places of dead letters",
    RuleKind.LETTERS_WAITING: "places of dead letters",
    RuleKind.STALLED: "groups, pipelines and captures",
    RuleKind.TOPIC_SILENT: "topics",
    RuleKind.LOST: "groups and captures",
    RuleKind.STREAM_AWAY: "the stream, which has no name",
}


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. Raises ConfigError for invalid values."""

    name: str
    kind: RuleKind
    threshold: float
    """In the unit of the kind (`RuleKind.unit`)."""
    match: str = "*"
    """The subjects it covers, as a shell pattern: billing, orders.*, * (see `RuleKind.subjects`)."""
    unless: str = ""
    """The subjects it does not cover, as a shell pattern; empty: none."""
    for_s: float = 0.0
    """It fires when it has held for this long without a break."""
    quiet_s: float = 60.0
    """It is resolved when it has not held for this long without a break, so that it does not flap."""
    severity: Severity = Severity.WARNING
    notify: tuple[str, ...] = ("log",)
    """The names of the notifiers; empty: it is only shown."""

    def __post_init__(self) -> None:
        check_name(self.name, "a rule")
        self._take_plain_values()
        if not math.isfinite(self.threshold) or self.threshold < 0:
            raise ConfigError(f"rule {self.name}: threshold {self.threshold} must be a number >= 0")
        if self.threshold == 0 and self.kind is not RuleKind.STREAM_AWAY:
            raise ConfigError(f"rule {self.name}: a threshold of 0 always holds; give one above 0, in {self.kind.unit}")
        for field, value in (("for_s", self.for_s), ("quiet_s", self.quiet_s)):
            if not 0 <= value <= LONGEST_S:
                raise ConfigError(f"rule {self.name}: {field} {value} must be seconds, from 0 to {LONGEST_S:.0f}")
        if not self.match:
            raise ConfigError(f"rule {self.name}: match is empty; write * for everything")
        if self.kind is RuleKind.STREAM_AWAY and (self.match != "*" or self.unless):
            raise ConfigError(
                f"rule {self.name}: {self.kind} is about the stream itself; leave match at * and omit unless"
            )
        if len(set(self.notify)) != len(self.notify):
            raise ConfigError(f"rule {self.name}: notify names a notifier twice: {', '.join(self.notify)}")

    def is_for(self, subject: str) -> bool:
        return fnmatch.fnmatchcase(subject, self.match) and not (
            self.unless and fnmatch.fnmatchcase(subject, self.unless)
        )

    def _take_plain_values(self) -> None:
        """Accept `kind="lag"` and `notify=["log"]`, as forms and programs write them."""
        set_value = msgspec.structs.force_setattr
        try:
            set_value(self, "kind", RuleKind(self.kind))
            set_value(self, "severity", Severity(self.severity))
        except ValueError as error:
            raise ConfigError(
                f"rule {self.name}: {error}; kinds are {', '.join(RuleKind)}, severities {', '.join(Severity)}"
            ) from error
        if isinstance(self.notify, str):
            raise ConfigError(f"rule {self.name}: notify is a list of names, not {self.notify!r}")
        set_value(self, "notify", tuple(self.notify))
        for field in ("threshold", "for_s", "quiet_s"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"rule {self.name}: {field} {value!r} must be a number")
            set_value(self, field, float(value))


def check_name(name: str, what: str) -> None:
    """Raise ConfigError for a rule or notifier name that is hard to write on a command line or in a log."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name[:LONGEST_NAME]!r} is not a valid name for {what}: use 1 to {LONGEST_NAME} printable characters, "
            "such as far-behind"
        )


DEFAULT_RULES: Final = (
    Rule(name="stream-away", kind=RuleKind.STREAM_AWAY, threshold=30, quiet_s=0, severity=Severity.CRITICAL),
    Rule(name="records-lost", kind=RuleKind.LOST, threshold=1, severity=Severity.CRITICAL),
    Rule(name="loss-near", kind=RuleKind.TIME_TO_LOSS_S, threshold=3600, for_s=60, severity=Severity.CRITICAL),
    Rule(name="far-behind", kind=RuleKind.LAG_S, threshold=300, for_s=120),
    Rule(name="stalled", kind=RuleKind.STALLED, threshold=300),
    Rule(name="dead-letters", kind=RuleKind.LETTERS_RATE, threshold=10, for_s=60),
)
"""The rules that apply when there is no file."""


class Phase(StrEnum):
    PENDING = "pending"
    """The rule holds, but not for long enough yet."""
    FIRING = "firing"
    RESOLVED = "resolved"
    """It fired, and no longer holds."""


@dataclass(frozen=True, slots=True)
class NotificationOutcome:
    notifier: str
    phase: Phase | None
    """What it was last told successfully: firing or resolved; None: nothing yet."""
    at_ms: int | None
    error: str | None = None
    """Why the latest attempt failed. It is retried."""


@dataclass(frozen=True, slots=True)
class AlertState:
    rule: str
    kind: RuleKind
    subject: str
    """The name of the group, topic, pipeline, capture or dead-letter store; empty for the stream itself."""
    severity: Severity
    phase: Phase
    since_ms: int
    """When this phase began."""
    fired_ms: int | None
    """When it fired; None while it is pending."""
    value: float
    """The last value, in the unit of the kind."""
    threshold: float
    text: str
    """One sentence on what is wrong and what to do. Contains names as they are: escape it."""
    muted_until_ms: int | None = None
    """Until then it is shown, but nobody is notified."""
    told: tuple[NotificationOutcome, ...] = ()

    @property
    def is_firing(self) -> bool:
        return self.phase is Phase.FIRING

    @property
    def order(self) -> tuple[int, int, int, str, str]:
        """Sort key: what needs attention first."""
        phase = (Phase.FIRING, Phase.PENDING, Phase.RESOLVED).index(self.phase)
        return phase, 0 if self.severity is Severity.CRITICAL else 1, -self.since_ms, self.rule, self.subject


@dataclass(frozen=True, slots=True)
class NotifierState:
    name: str
    type: str
    target: str
    """Where it sends to, without secrets."""
    sent: int = 0
    """Messages delivered since this process started."""
    failures: int = 0
    """Attempts that failed since the last success."""
    error: str | None = None
    """Why the latest attempt failed."""
    sent_ms: int | None = None
