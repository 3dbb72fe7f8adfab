"""Positions: where to start reading."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from penstock.errors import ConfigError
from penstock.model.times import EPOCH, milliseconds


class PositionKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    POINTER = "pointer"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start reading: earliest, latest, at a time, or at a pointer."""

    kind: PositionKind
    time_ms: int = 0
    """For a position at a time: start at the first record with this timestamp or a later one."""
    pointer: str = ""
    """For a position at a pointer: start at that record, or the first one after it."""

    EARLIEST: ClassVar[Position]
    """The first record that still exists."""
    LATEST: ClassVar[Position]
    """After the last record: only records that arrive from now on."""

    @classmethod
    def at_time(cls, when: datetime.datetime | int) -> Self:
        """The first record at or after this time, a datetime or milliseconds since 1970."""
        return cls(PositionKind.TIME, time_ms=milliseconds(when, "the time"))

    @classmethod
    def at_pointer(cls, pointer: int | str) -> Self:
        """The record with this pointer, which is Kafka's offset."""
        return cls(PositionKind.POINTER, pointer=str(pointer))

    @classmethod
    def parse(cls, text: str, now: datetime.datetime) -> Position:
        """Parse what a user typed; see POSITION_FORMS. Raises ConfigError that lists the forms."""
        text = text.strip()
        if text.lower() in (PositionKind.EARLIEST, PositionKind.LATEST):
            return cls.EARLIEST if text.lower() == PositionKind.EARLIEST else cls.LATEST
        if _MILLISECONDS.fullmatch(text):
            return cls.at_time(int(text.removeprefix("@")))
        if _POINTER.fullmatch(text):
            return cls.at_pointer(int(text.removeprefix("offset:")))
        try:
            if match := _AGO.fullmatch(text):
                ago = datetime.timedelta(seconds=float(match["count"]) * _UNIT_S[match["unit"]])
                return cls.at_time(now - ago)
            return cls.at_time(datetime.datetime.fromisoformat(text).astimezone())
        except (ValueError, OverflowError):
            raise ConfigError(f"{text!r} is not a position: use {POSITION_FORMS}") from None

    def __str__(self) -> str:
        match self.kind:
            case PositionKind.TIME:
                return f"{(EPOCH + datetime.timedelta(milliseconds=self.time_ms)).isoformat(timespec='milliseconds')}"
            case PositionKind.POINTER:
                return f"offset {self.pointer}"
            case _:
                return str(self.kind)


Position.EARLIEST = Position(PositionKind.EARLIEST)
Position.LATEST = Position(PositionKind.LATEST)

POSITION_FORMS: Final = (
    "earliest, latest, an offset (42), a time (2026-11-15T08:00, local unless it names a zone), "
    "an age (-30s, -15m, -1h, -7d) or milliseconds since 1970 (13 digits, or @ and any number; offset:N is an offset)"
)

# A number of 13 digits is a time between 2001 and 2286; few partitions will ever reach such offsets.
_MILLISECONDS: Final = re.compile(r"@\d{1,14}|\d{13}", re.ASCII)
_POINTER: Final = re.compile(r"(?:offset:)?\d{1,60}", re.ASCII)  # streams without offsets have larger pointers
_AGO: Final = re.compile(r"-(?P<count>\d{1,9}(?:\.\d+)?)(?P<unit>ms|s|m|h|d|w)", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
