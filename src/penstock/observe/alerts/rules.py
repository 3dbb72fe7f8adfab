"""What an alert is about: rules, each a sentence that is true of a system in trouble. Pure data, checked when made."""

from __future__ import annotations

import fnmatch
import math
from enum import StrEnum
from typing import Final

import msgspec

from penstock.errors import ConfigError

LONGEST_NAME: Final = 100
LONGEST_S: Final = 366 * 86_400.0
"""A rule that waits for longer than a year is a mistake in its unit."""


class Severity(StrEnum):
    WARNING = "warning"
    """Somebody should look today."""
    CRITICAL = "critical"
    """Somebody should look now."""


class Kind(StrEnum):
    """What a rule looks at, and in which unit its threshold is."""

    LAG_S = "lag_s"
    """A group whose oldest unread record has been waiting for so many seconds, or more."""
    LAG = "lag"
    """A group or pipeline that is so many records behind, or more."""
    TIME_TO_LOSS_S = "time_to_loss_s"
    """A group that retention will overtake in so many seconds, or fewer."""
    LETTERS_RATE = "letters_rate"
    """A place to which so many dead letters come in a minute, or more."""
    LETTERS_WAITING = "letters_waiting"
    """A place in which so many dead letters wait, or more."""
    STALLED = "stalled"
    """A group or pipeline that has something to read and has not moved for so many seconds, or a query that failed."""
    TOPIC_SILENT = "topic_silent"
    """A topic to which nothing has been appended for so many seconds."""
    LOST = "lost"
    """A group of which so many records expired before it read them, or more."""
    STREAM_AWAY = "stream_away"
    """The stream has not answered for so many seconds."""

    @property
    def is_worse_when_lower(self) -> bool:
        return self is Kind.TIME_TO_LOSS_S

    @property
    def unit(self) -> str:
        """Of the threshold, as people read it."""
        return _UNITS[self]

    @property
    def subjects(self) -> str:
        """What `match` is matched against, as people read it."""
        return _SUBJECTS[self]


_UNITS: Final = {
    Kind.LAG_S: "s",
    Kind.LAG: "records",
    Kind.TIME_TO_LOSS_S: "s",
    Kind.LETTERS_RATE: "letters/min",
    Kind.LETTERS_WAITING: "letters",
    Kind.STALLED: "s",
    Kind.TOPIC_SILENT: "s",
    Kind.LOST: "records",
    Kind.STREAM_AWAY: "s",
}
_SUBJECTS: Final = {
    Kind.LAG_S: "groups",
    Kind.LAG: "groups and pipelines",
    Kind.TIME_TO_LOSS_S: "groups",
    Kind.LETTERS_RATE: "places of dead letters",
    Kind.LETTERS_WAITING: "places of dead letters",
    Kind.STALLED: "groups and pipelines",
    Kind.TOPIC_SILENT: "topics",
    Kind.LOST: "groups",
    Kind.STREAM_AWAY: "the stream, which has no name",
}


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. Raises ConfigError when it is made with something that cannot be meant."""

    name: str
    kind: Kind
    threshold: float
    """In the unit of the kind (`Kind.unit`)."""
    match: str = "*"
    """The names that it is for, as a shell pattern: billing, orders.*, * (see `Kind.subjects`)."""
    unless: str = ""
    """The names that it is not for, as a shell pattern; empty: there are none."""
    for_s: float = 0.0
    """It fires when it has been true for so long without a break."""
    quiet_s: float = 60.0
    """It is resolved when it has been untrue for so long without a break, so that it does not flap."""
    severity: Severity = Severity.WARNING
    notify: tuple[str, ...] = ("log",)
    """The names of the notifiers that are told; empty: it is only shown."""

    def __post_init__(self) -> None:
        check_name(self.name, "a rule")
        self._take_plain_values()
        if not math.isfinite(self.threshold) or self.threshold < 0:
            raise ConfigError(f"rule {self.name}: threshold {self.threshold} must be a number that is not below 0")
        if self.threshold == 0 and self.kind is not Kind.STREAM_AWAY:
            raise ConfigError(
                f"rule {self.name}: a threshold of 0 is always true; give one above 0, in {self.kind.unit}"
            )
        for field, value in (("for_s", self.for_s), ("quiet_s", self.quiet_s)):
            if not 0 <= value <= LONGEST_S:
                raise ConfigError(f"rule {self.name}: {field} {value} must be seconds, from 0 to {LONGEST_S:.0f}")
        if not self.match:
            raise ConfigError(f"rule {self.name}: match is empty, so it is for nothing; write * for everything")
        if self.kind is Kind.STREAM_AWAY and (self.match != "*" or self.unless):
            raise ConfigError(
                f"rule {self.name}: {self.kind} is about the stream itself; leave match at * and unless out"
            )
        if len(set(self.notify)) != len(self.notify):
            raise ConfigError(f"rule {self.name}: notify names a notifier twice: {', '.join(self.notify)}")

    def is_for(self, subject: str) -> bool:
        return fnmatch.fnmatchcase(subject, self.match) and not (
            self.unless and fnmatch.fnmatchcase(subject, self.unless)
        )

    def _take_plain_values(self) -> None:
        """Let `kind="lag"` and `notify=["log"]` be written, as forms and programs do."""
        set_value = msgspec.structs.force_setattr
        try:
            set_value(self, "kind", Kind(self.kind))
            set_value(self, "severity", Severity(self.severity))
        except ValueError as error:
            raise ConfigError(
                f"rule {self.name}: {error}; kinds are {', '.join(Kind)}, severities {', '.join(Severity)}"
            ) from error
        if isinstance(self.notify, str):
            raise ConfigError(f"rule {self.name}: notify is a list of names, not {self.notify!r}")
        set_value(self, "notify", tuple(self.notify))
        for field in ("threshold", "for_s", "quiet_s"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"rule {self.name}: {field} {value!r} is no number")
            set_value(self, field, float(value))


def check_name(name: str, what: str) -> None:
    """ConfigError for a name of a rule or notifier that would be hard to write on a command line or in a log."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise ConfigError(
            f"{name[:LONGEST_NAME]!r} is no name for {what}: use 1 to {LONGEST_NAME} printable characters, "
            "such as far-behind"
        )


DEFAULT_RULES: Final = (
    Rule(name="stream-away", kind=Kind.STREAM_AWAY, threshold=30, quiet_s=0, severity=Severity.CRITICAL),
    Rule(name="records-lost", kind=Kind.LOST, threshold=1, severity=Severity.CRITICAL),
    Rule(name="loss-near", kind=Kind.TIME_TO_LOSS_S, threshold=3600, for_s=60, severity=Severity.CRITICAL),
    Rule(name="far-behind", kind=Kind.LAG_S, threshold=300, for_s=120),
    Rule(name="stalled", kind=Kind.STALLED, threshold=300),
    Rule(name="dead-letters", kind=Kind.LETTERS_RATE, threshold=10, for_s=60),
)
"""The rules of whoever has written none."""
