"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and will not always, or not well."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    """What was looked at, in a word or two."""
    level: Level
    text: str
    fix: str | None = None
    """What to do; for everything that is not well."""


def ok(what: str, text: str) -> Finding:
    return Finding(what, Level.OK, text)


def warn(what: str, text: str, fix: str) -> Finding:
    return Finding(what, Level.WARN, text, fix)


def fail(what: str, text: str, fix: str) -> Finding:
    return Finding(what, Level.FAIL, text, fix)
