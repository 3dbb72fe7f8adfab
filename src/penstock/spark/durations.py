"""Durations as Spark's users write them: `10 seconds`, `1 hour 30 minutes`, or a timedelta."""

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
"""About 270 years. Added to a time, longer durations could exceed 64 bits."""


def microseconds(duration: Duration, what: str, *, zero: bool = False) -> int:
    """Parse a duration. Raises ConfigError, with `what` in the message, if it is invalid, or zero without `zero`.

    Months and years are refused, as their length varies.
    """
    length_us = _of_timedelta(duration) if isinstance(duration, datetime.timedelta) else _of_text(duration, what)
    if length_us < 0 or (length_us == 0 and not zero):
        raise ConfigError(f"{what}: {duration!r} must be {'>= 0' if zero else 'positive'}")
    if length_us > _LONGEST_US:
        raise ConfigError(f"{what}: {duration!r} is longer than {_LONGEST_US // _UNITS_US['day']} days")
    return length_us


def interval(length_us: int) -> str:
    """The duration as Spark's interval text."""
    for unit in ("day", "hour", "minute", "second", "millisecond"):
        if length_us % _UNITS_US[unit] == 0:
            return f"{length_us // _UNITS_US[unit]} {unit}s"
    return f"{length_us} microseconds"


def _of_timedelta(duration: datetime.timedelta) -> int:
    return duration // datetime.timedelta(microseconds=1)


def _of_text(duration: object, what: str) -> int:
    if not isinstance(duration, str):
        raise ConfigError(f"{what}: {duration!r} must be text such as '10 seconds', or a timedelta")
    text = duration.strip().lower().removeprefix("interval ")
    place, total_us = 0, Decimal(0)
    while place < len(text):
        part = _PART.match(text, place)
        unit = part.group(2).removesuffix("s") if part is not None else ""
        if part is None or unit not in _UNITS_US:
            hint = " (months and years vary in length: use days)" if unit in ("month", "year") else ""
            raise ConfigError(
                f"{what}: {duration!r} must be a duration such as '10 seconds' or '1 hour 30 minutes'{hint}"
            )
        total_us += Decimal(part.group(1)) * _UNITS_US[unit]
        place = part.end()
    if not text:
        raise ConfigError(f"{what}: the duration is empty: write one such as '10 seconds'")
    if total_us != int(total_us):
        raise ConfigError(f"{what}: {duration!r} is finer than a microsecond")
    return int(total_us)
