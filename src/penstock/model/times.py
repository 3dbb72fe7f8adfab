"""Times on the way in: a datetime with a zone, or milliseconds since 1970."""

from __future__ import annotations

import datetime
from typing import Final

from penstock.errors import ConfigError

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def milliseconds(when: datetime.datetime | int, what: str) -> int:
    """A time in milliseconds since 1970. A time without a zone is refused: nobody can know which one was meant."""
    if isinstance(when, datetime.datetime):
        if when.tzinfo is None:
            raise ConfigError(f"{what} {when.isoformat()} has no time zone: add one, such as tzinfo=datetime.UTC")
        return (when - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(when, bool) or not isinstance(when, int):
        raise ConfigError(f"{what} {when!r} is neither a datetime nor milliseconds since 1970")
    return when
