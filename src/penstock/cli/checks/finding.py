"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but not always, or not well."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    level: Level
    text: str
    fix: str | None = None
    """What to do, for a warning or failure."""


def ok(what: str, text: str) -> Finding:
    return Finding(what, Level.OK, text)


def warn(what: str, text: str, fix: str) -> Finding:
    return Finding(what, Level.WARN, text, fix)


def fail(what: str, text: str, fix: str) -> Finding:
    return Finding(what, Level.FAIL, text, fix)
