"""Reading records again from memory, one by one: what `Connection.read` gives, without a broker."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from penstock.errors import ConfigError, ConnectionClosedError, OffsetOutOfRangeError, UnknownTopicError
from penstock.model import Pointer, Position, PositionKind, Record
from penstock.streams.memory.stream import MemoryStream

Start = str | datetime.datetime | Position | Mapping[int, int]
"""Where to begin: "earliest", "latest", a time, a Position, or an offset for each partition."""

_AT_ONCE: Final = 1_000


class MemoryReader(Iterator[Record]):
    """An iterator over records, in order within each partition. One thread reads; any may `close` it."""

    def __init__(
        self,
        stream: MemoryStream,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> None:
        if limit is not None and limit < 0:
            raise ConfigError(f"the limit {limit} is negative")
        self._topic = stream.topic
        self._follow = follow
        self._left = limit
        self._wait_s = float("inf") if timeout_s is None else timeout_s
        self._ready: list[Record] = []
        """What can be had without waiting, the next one last."""
        self._closed = False
        self._feed = stream.feed()
        self._ends: dict[int, Pointer] = {}
        """Where each partition that is not read to its end yet ends; with `follow` none does."""
        for partition, pointer in _starts(stream, start, partitions).items():
            first, end = stream.span(partition)
            if not first <= pointer <= end:
                raise OffsetOutOfRangeError(f"{self._topic}-{partition}", pointer, first, end)
            if follow or pointer < end:
                self._feed.add(partition, pointer)
                self._ends[partition] = end

    def __next__(self) -> Record:
        if self._left == 0:
            self.close()
            raise StopIteration
        while not self._ready:
            self._fetch()
        if self._left is not None:
            self._left -= 1
        return self._ready.pop()

    @property
    def ready(self) -> int:
        """How many records can be had without waiting."""
        return len(self._ready)

    def close(self) -> None:
        """Stop reading. A thread that waits for the next record stops waiting.

        A reader that follows then ends. One that has not come to its end raises when it is asked for more, so that
        nobody takes a part for the whole.
        """
        self._closed = True
        self._feed.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self) -> None:
        """Wait for more records. Raises StopIteration at the end."""
        if not self._ends or (self._closed and self._follow):
            raise StopIteration
        if self._closed:
            raise ConnectionClosedError(f"reading topic {self._topic!r} was stopped before its end")
        batches = self._feed.poll(_AT_ONCE, self._wait_s)
        if not batches and not self._closed:
            self._ends.clear()
        for batch in reversed(batches):
            end = float("inf") if self._follow else self._ends[batch.partition]
            self._ready.extend(record for record in reversed(batch) if record.offset < end)
            if batch.next >= end:
                del self._ends[batch.partition]
                self._feed.remove(batch.partition)


def _starts(stream: MemoryStream, start: Start, asked: Iterable[int] | None) -> dict[int, Pointer]:
    there = stream.partitions()
    given = start if isinstance(start, Mapping) else None
    chosen = sorted(set(asked)) if asked is not None else sorted(given) if given is not None else there
    missing = set(chosen) - set(there)
    if missing:
        raise UnknownTopicError(
            f"topic {stream.topic!r} has no partition {min(missing)}: it has {len(there)}, numbered from 0"
        )
    if given is None:
        position = _position(start)
        return {partition: stream.locate(partition, position) for partition in chosen}
    if not set(chosen) <= set(given):
        raise ConfigError(
            f"start has no offset for partition {min(set(chosen) - set(given))} of topic {stream.topic!r}"
        )
    return {partition: given[partition] for partition in chosen}


def _position(start: Start) -> Position:
    if isinstance(start, Position):
        return start
    if isinstance(start, datetime.datetime):
        return Position.at_time(start)
    if start == PositionKind.EARLIEST:
        return Position.EARLIEST
    if start == PositionKind.LATEST:
        return Position.LATEST
    raise ConfigError(
        f'{start!r} is no start: use "earliest", "latest", a datetime, Position.at_time(milliseconds), '
        "Position.at_pointer(offset), or an offset for each partition, {0: 42}"
    )
