"""Reading times: a datetime with a time zone, or milliseconds since 1970."""

from __future__ import annotations

import datetime
from typing import Final

from penstock.errors import ConfigError

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def check_seconds(value: object, what: str) -> None:
    """Raise ConfigError unless it is a number of seconds, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"{what}={value!r} must be a number of seconds")


def milliseconds(when: datetime.datetime | int, what: str) -> int:
    """A time in milliseconds since 1970. A datetime without a time zone is refused: it is ambiguous."""
    if isinstance(when, datetime.datetime):
        if when.tzinfo is None:
            raise ConfigError(f"{what} {when.isoformat()} has no time zone: add one, such as tzinfo=datetime.UTC")
        return (when - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(when, bool) or not isinstance(when, int):
        raise ConfigError(f"{what} {when!r} is neither a datetime nor milliseconds since 1970")
    return when
