"""Lengths of time as Spark's users write them: `10 seconds`, `1 hour 30 minutes`, or a timedelta."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Final

from penstock.errors import ConfigError

Duration = str | datetime.timedelta

_UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_LONGEST_US: Final = 100_000 * _UNITS_US["day"]
"""Some 270 years. Longer ones are mistakes, and would not fit beside a time in 64 bits."""


def microseconds(duration: Duration, what: str, *, zero: bool = False) -> int:
    """How long it is. ConfigError, naming `what` it was for, when it is no length of time that is always the same.

    Months and years are not, so that windows and grace cannot be given in them. Nothing at all is a length where `zero`
    says so.
    """
    length_us = _of_timedelta(duration) if isinstance(duration, datetime.timedelta) else _of_text(duration, what)
    if length_us < 0 or (length_us == 0 and not zero):
        raise ConfigError(f"{what}: {duration!r} is not longer than nothing")
    if length_us > _LONGEST_US:
        raise ConfigError(f"{what}: {duration!r} is longer than {_LONGEST_US // _UNITS_US['day']} days")
    return length_us


def interval(length_us: int) -> str:
    """The length as Spark reads it, whatever it was written as."""
    for unit in ("day", "hour", "minute", "second", "millisecond"):
        if length_us % _UNITS_US[unit] == 0:
            return f"{length_us // _UNITS_US[unit]} {unit}s"
    return f"{length_us} microseconds"


def _of_timedelta(duration: datetime.timedelta) -> int:
    return duration // datetime.timedelta(microseconds=1)


def _of_text(duration: object, what: str) -> int:
    if not isinstance(duration, str):
        raise ConfigError(f"{what}: {duration!r} is neither text such as '10 seconds' nor a timedelta")
    text = duration.strip().lower().removeprefix("interval ")
    place, total_us = 0, Decimal(0)
    while place < len(text):
        part = _PART.match(text, place)
        unit = part.group(2).removesuffix("s") if part is not None else ""
        if part is None or unit not in _UNITS_US:
            hint = " (months and years differ in length: say days)" if unit in ("month", "year") else ""
            raise ConfigError(f"{what}: {duration!r} is no duration such as '10 seconds' or '1 hour 30 minutes'{hint}")
        total_us += Decimal(part.group(1)) * _UNITS_US[unit]
        place = part.end()
    if not text:
        raise ConfigError(f"{what}: an empty text is no duration: write one such as '10 seconds'")
    if total_us != int(total_us):
        raise ConfigError(f"{what}: {duration!r} is finer than a microsecond")
    return int(total_us)
