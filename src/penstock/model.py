"""The words as types: what is sent, what comes back, and where in a stream it stands.

Pure data. Nothing here knows how a stream is reached; every room may use it.
"""

from __future__ import annotations

import datetime
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final, Self

from penstock.errors import ConfigError, DeliveryError

logger = logging.getLogger(__name__)

Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record, in their order; a name may stand there more than once."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    topic: str
    partition: int
    offset: int

    @property
    def pointer(self) -> str:
        """The place within the partition, as it is stored."""
        return str(self.offset)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} at offset {self.offset}"


@dataclass(frozen=True, slots=True)
class Record:
    """One record, as it was read."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    """None is a value, too: in a compacted topic it says that the key is gone."""
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970, as the producer or the broker gave it; None where there is none."""

    @property
    def pointer(self) -> str:
        """The place within the partition, as it is stored."""
        return str(self.offset)

    @property
    def place(self) -> Place:
        return Place(self.topic, self.partition, self.offset)

    @property
    def timestamp(self) -> datetime.datetime | None:
        """The timestamp as a time in UTC."""
        if self.timestamp_ms is None:
            return None
        return EPOCH + datetime.timedelta(milliseconds=self.timestamp_ms)


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


class PositionKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    POINTER = "pointer"


@dataclass(frozen=True, slots=True)
class Position:
    """How a first pointer is chosen: earliest, latest, at a time, or at a pointer."""

    kind: PositionKind
    time_ms: int = 0
    """For a position at a time: the first record with this timestamp or a later one."""
    pointer: str = ""
    """For a position at a pointer: that record, or the first one behind it."""

    EARLIEST: ClassVar[Position]
    """The first record that is still there."""
    LATEST: ClassVar[Position]
    """Behind the last record: only what comes from now on."""

    @classmethod
    def at_time(cls, when: datetime.datetime | int) -> Self:
        """The first record from this time on, a datetime or milliseconds since 1970."""
        return cls(PositionKind.TIME, time_ms=milliseconds(when, "the time"))

    @classmethod
    def at_pointer(cls, pointer: int | str) -> Self:
        """The record with this pointer, which in Kafka's streams is the offset."""
        return cls(PositionKind.POINTER, pointer=str(pointer))

    @classmethod
    def parse(cls, text: str, now: datetime.datetime) -> Position:
        """What a person writes; see POSITION_FORMS. ConfigError says what can be written."""
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
            raise ConfigError(f"{text!r} is no position: use {POSITION_FORMS}") from None

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

# A number of 13 digits is a time between 2001 and 2286; few partitions will ever hold so many records.
_MILLISECONDS: Final = re.compile(r"@\d{1,14}|\d{13}", re.ASCII)
_POINTER: Final = re.compile(r"(?:offset:)?\d{1,19}", re.ASCII)
_AGO: Final = re.compile(r"-(?P<count>\d{1,9}(?:\.\d+)?)(?P<unit>ms|s|m|h|d|w)", re.ASCII)
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class Receipt:
    """What `send` gives back: the promise that the stream will acknowledge the record, or say why not.

    `result` waits for it. A failure that nobody looks at is not lost: `flush` and `close` raise it.
    """

    __slots__ = ("_callbacks", "_error", "_hurry", "_offset", "_partition", "_waiter", "done", "seen", "topic")

    _lock: ClassVar = threading.Lock()
    """Shared by all receipts, as it is held for a few instructions only, and there are very many of them."""

    def __init__(self, topic: str, hurry: Callable[[], None] | None = None) -> None:
        self.topic = topic
        self.done = False
        """Whether the record has been acknowledged or refused."""
        self.seen = False
        """Whether somebody has learnt from this receipt that its record was not delivered."""
        self._hurry = hurry
        self._error: DeliveryError | None = None
        self._waiter: threading.Event | None = None
        self._callbacks: list[Callable[[Receipt], object]] | None = None

    @property
    def error(self) -> DeliveryError | None:
        """Why the record was not delivered; None while that is open, and when it was."""
        self.seen = self.seen or self._error is not None
        return self._error

    def result(self, timeout: float | None = None) -> Place:
        """Where the record stands, once it is acknowledged.

        Raises DeliveryError when it could not be delivered, and TimeoutError when nothing is known after `timeout`
        seconds: then the record is still on its way.
        """
        if not self.done:
            self._wait(timeout)
        if self._error is not None:
            self.seen = True
            raise self._error
        return Place(self.topic, self._partition, self._offset)

    def add_done_callback(self, callback: Callable[[Receipt], object]) -> None:
        """Call it with this receipt once it is done: in the thread that hears from the stream, or now if it is.

        The callback must not wait for another receipt. What it raises is logged.
        """
        with self._lock:
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append(callback)
        if self.done:
            self._call_back()

    # Settling takes no lock where nobody waits. It marks the receipt first and looks for who waits then; who wants to
    # wait writes that down first and looks at the mark then. So one of them sees the other.

    def settle(self, partition: int, offset: int, error: DeliveryError | None = None) -> None:
        """Called by the stream, once: the record stands there, or `error` says why it does not."""
        assert not self.done, f"the receipt of a record for {self.topic!r} was settled twice"
        self._partition = partition
        self._offset = offset
        self._error = error
        self.done = True
        if self._waiter is not None:
            self._waiter.set()
        if self._callbacks is not None:
            self._call_back()

    def _wait(self, timeout: float | None) -> None:
        with self._lock:
            if self._waiter is None:
                self._waiter = threading.Event()
            waiter = self._waiter
        if self.done:
            return
        started_s = time.monotonic()
        while self._hurry is not None and not waiter.is_set():
            waited_s = time.monotonic() - started_s
            if waited_s > _HURRY_S or (timeout is not None and waited_s >= timeout):
                break
            self._hurry()
        left_s = None if timeout is None else max(0.0, timeout - (time.monotonic() - started_s))
        if not waiter.wait(left_s):
            raise TimeoutError(
                f"the record for {self.topic!r} was not acknowledged within {timeout:g} s; it is still being tried"
            )

    def _call_back(self) -> None:
        """Call each callback once, whichever thread comes first."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks or (), None
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                logger.exception("a callback of a receipt for %r failed", self.topic)

    def __repr__(self) -> str:
        if not self.done:
            return f"<Receipt for {self.topic!r}: on its way>"
        if self._error is not None:
            return f"<Receipt for {self.topic!r}: {self._error}>"
        return f"<Receipt: {Place(self.topic, self._partition, self._offset)}>"


_HURRY_S: Final = 0.05
"""How long a receipt that is waited for asks the stream not to wait for others to fill the batch."""
