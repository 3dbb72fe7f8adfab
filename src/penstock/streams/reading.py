"""Readers, which read topics without a group: their interface, and one for any stream."""

from __future__ import annotations

import asyncio
import collections
import datetime
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self

from penstock.abc import Feed, Feeding, Resharding, TopicStream
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    PenstockError,
    UnknownTopicError,
)
from penstock.model import Batch, Pointer, Position, PositionKind, Record
from penstock.model.administration import Offsets
from penstock.model.times import check_seconds
from penstock.serde import Topic
from penstock.streams.topic_patterns import TopicPattern, check_position_for_several, described

Start = str | datetime.datetime | Position | Mapping[int, int]
"""Where to start: "earliest", "latest", a datetime, a Position, or an offset for each partition."""

_AT_ONCE: Final = 1_000
SLICE_S: Final = 0.2
"""How long a reader waits before it checks whether it was closed."""
_SILENCE_S: Final = 30.0
"""How long a reader that has not reached its end waits for a stream that returns nothing."""
_TURN_S: Final = 0.05
"""How long to wait for one partition before looking at the next."""


class Closeable(Protocol):
    def close(self) -> None: ...


class Reader(Iterator[Record], AsyncIterator[Record], ABC):
    """An iterator over records, for `for` or `async for`. One thread or task reads; any thread may `close` it."""

    @abstractmethod
    def __next__(self) -> Record: ...

    async def __anext__(self) -> Record:
        """Await `next`. Cancelling the wait loses no record."""
        while not self.ready:
            if not await asyncio.to_thread(self._look):
                raise StopAsyncIteration
        return next(self)

    @abstractmethod
    def _look(self, slice_s: float = SLICE_S) -> bool:
        """Wait for more records, for at most `slice_s`. False at the end."""

    @property
    @abstractmethod
    def ready(self) -> int:
        """How many records can be returned without waiting."""

    @abstractmethod
    def close(self) -> None:
        """Stop reading, and wake a thread that waits for the next record.

        A reader that follows then ends. Any other raises if it is asked for more before its end, so that a part is
        never taken for the whole.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class StreamReader(Reader):
    """Reads a topic of any stream, through its own feed or else by `TopicStream.read`. It closes the topic."""

    def __init__(
        self,
        opened: TopicStream,
        start: Start,
        follow: bool,
        limit: int | None,
        timeout_s: float | None,
        partitions: Iterable[int] | None,
    ) -> None:
        self._opened = opened
        self._topic = opened.topic
        self._position = position_of(start)
        self._follow = follow
        self._left = limit
        self._timeout_s = timeout_s
        self._waited_s = 0.0
        self._ready: collections.deque[Record] = collections.deque()
        self._ends: dict[int, Pointer] = {}
        """The partitions that are still being read, and their ends when the reader was opened."""
        self._begun: set[int] = set()
        self._error: PenstockError | None = None
        """Why the topic cannot be read to its end. Raised again by every further call."""
        self._closed = False
        self._released = False
        self._lock = threading.Lock()
        self._feed: Feed | None = None
        try:
            chosen = chosen_partitions(self._topic, opened.partitions(), start, partitions)
            starts, ends = self._find_range(start, chosen)
            self._ends = {each: ends[each] for each in chosen if follow or starts[each] < ends[each]}
            if self._ends and limit != 0:
                self._feed = self._new_feed()
                for partition in self._ends:
                    self._feed.add(partition, starts[partition])
        except BaseException:
            self._release()
            raise

    def __next__(self) -> Record:
        if self._left == 0:
            self.close()
            raise StopIteration
        while not self._ready:
            self._fetch()
        if self._left is not None:
            self._left -= 1
        return self._ready.popleft()

    def _look(self, slice_s: float = SLICE_S) -> bool:
        if self._left == 0:
            self.close()
            return False
        try:
            self._fetch(slice_s)
        except StopIteration:
            return False
        return True

    @property
    def ready(self) -> int:
        return len(self._ready) if self._left is None else min(self._left, len(self._ready))

    def close(self) -> None:
        self._closed = True
        feed = self._feed
        if feed is not None:
            feed.wake()
        with self._lock:
            self._release()

    def _release(self) -> None:
        if self._released:
            return
        self._released = True
        feed, self._feed = self._feed, None
        try:
            if feed is not None:
                feed.close()
        finally:
            self._opened.close()

    def _find_range(self, start: Start, partitions: Sequence[int]) -> tuple[Offsets, Offsets]:
        """Find where each partition starts, and its current end. OffsetOutOfRangeError for a chosen offset that is
        gone."""
        starts, ends = {}, {}
        for partition in partitions:
            if isinstance(start, Mapping):
                starts[partition] = start[partition]
            else:
                starts[partition] = self._opened.locate(partition, self._position)
            first, ends[partition] = self._opened.span(partition)
            self._check_range(partition, starts[partition], first, ends[partition])
        return starts, ends

    def _check_range(self, partition: int, pointer: Pointer, first: Pointer, end: Pointer) -> None:
        if self._position.kind is PositionKind.POINTER and not first <= pointer <= end:
            raise OffsetOutOfRangeError(f"{self._topic}-{partition}", pointer, first, end)

    def _new_feed(self) -> Feed:
        return self._opened.feed() if isinstance(self._opened, Feeding) else RoundRobinFeed(self._opened)

    def _fetch(self, slice_s: float = float("inf")) -> None:
        """Wait for more records. Raises StopIteration at the end."""
        if self._error is not None:
            raise self._error
        if not self._ends or (self._closed and self._follow):
            self.close()
            raise StopIteration
        with self._lock:
            if self._feed is None:
                raise ConnectionClosedError(f"reading topic {self._topic!r} was stopped before its end")
            wait_s = min(self._longest_wait_s - self._waited_s, slice_s)
            limit = _AT_ONCE if self._left is None else min(_AT_ONCE, self._left)
            try:
                batches = self._feed.poll(limit, wait_s)
            except OffsetOutOfRangeError as error:
                self._relocate(error)
                return
            self._waited_s = 0.0 if batches else self._waited_s + wait_s
            for batch in batches:
                self._take(batch)
            if self._waited_s >= self._longest_wait_s and not self._closed:
                self._stop_waiting()

    @property
    def _longest_wait_s(self) -> float:
        if self._timeout_s is not None:
            return self._timeout_s
        return float("inf") if self._follow else _SILENCE_S

    def _take(self, batch: Batch) -> None:
        end = self._ends.get(batch.partition)
        if end is None:  # a further batch of a partition that has reached its end
            return
        assert self._feed is not None
        self._begun.add(batch.partition)
        if self._follow or batch.next <= end:
            self._ready.extend(batch)
        else:
            self._ready.extend(record for record in batch if record.offset < end)
        if batch.next >= end and not self._follow:
            del self._ends[batch.partition]
            self._feed.remove(batch.partition)

    def _relocate(self, error: OffsetOutOfRangeError) -> None:
        """Continue after records expired: a reader that wanted the earliest, and has read nothing, starts at what is
        earliest now."""
        assert self._feed is not None
        partition = error.partition
        if self._position.kind is not PositionKind.EARLIEST or partition in self._begun:
            self._error = error
            raise error
        if self._follow or error.start < self._ends[partition]:
            self._feed.add(partition, error.start)
        else:
            del self._ends[partition]

    def _stop_waiting(self) -> None:
        """Nothing came for too long. That ends a reader that follows; any other must have got more records."""
        if self._follow:
            self._ends.clear()
            return
        self._error = BrokerUnavailableError(
            f"topic {self._topic!r} was not read to its end: nothing came for {self._longest_wait_s:g} s; "
            "check that the stream runs and can be reached"
        )
        raise self._error


class RoundRobinFeed:
    """`abc.Feed` by `TopicStream.read`, one partition after the other, in the polling thread."""

    def __init__(self, stream: TopicStream) -> None:
        self._stream = stream
        self._next: dict[int, Pointer] = {}
        """Where each partition continues, in the order of their turns."""
        self._paused: set[int] = set()
        self._parents: dict[int, Sequence[int]] = {}
        """Which partitions each has replaced: that never changes."""
        self._woken = threading.Event()
        self._closed = False

    def add(self, partition: int, start: Pointer) -> None:
        self._check_open()
        self._next[partition] = start

    def remove(self, partition: int) -> None:
        self._next.pop(partition, None)
        self._paused.discard(partition)

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        if limit < 1:
            raise ConfigError(f"limit={limit} must be >= 1")
        until_s = time.monotonic() + wait_s
        is_waiting = False
        while True:  # ends with a batch, at the deadline, or when it is woken
            self._check_open()
            wanted = [each for each in self._next if each not in self._paused and self._may_begin(each)]
            for partition in wanted:
                left_s = max(0.0, until_s - time.monotonic())
                batch = self._read(partition, limit, min(left_s, _TURN_S) if is_waiting else 0.0)
                if batch is not None:
                    return [batch]
                if self._woken.is_set():
                    break
            if self._woken.is_set() or time.monotonic() >= until_s:
                self._woken.clear()
                return ()
            if not wanted:
                self._woken.wait(min(SLICE_S, until_s - time.monotonic()))
            is_waiting = True

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._closed = True

    def _may_begin(self, partition: int) -> bool:
        """Whether every partition that this one has replaced was read to its end, as far as it is in this feed."""
        if not isinstance(self._stream, Resharding):
            return True
        parents = [parent for parent in self._parents_of(partition) if parent in self._next]
        return all(self._next[parent] >= self._stream.span(parent)[1] for parent in parents)

    def _parents_of(self, partition: int) -> Sequence[int]:
        assert isinstance(self._stream, Resharding)
        if partition not in self._parents:
            self._parents[partition] = self._stream.parents(partition)
        return self._parents[partition]

    def _read(self, partition: int, limit: int, wait_s: float) -> Batch | None:
        start = self._next[partition]
        try:
            batch = self._stream.read(partition, start, limit, wait_s)
        except OffsetOutOfRangeError:
            self.remove(partition)
            raise
        if batch.next == start:
            return None
        del self._next[partition]
        self._next[partition] = batch.next
        return batch

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the feed of topic {self._stream.topic!r} is closed")


def check_read(
    topics: Sequence[str | Topic[Any]] | TopicPattern,
    start: object,
    limit: object,
    timeout_s: object,
    partitions: object,
) -> None:
    """Check the arguments of `Connection.read`. Raises InvalidTopicError or ConfigError."""
    for topic in () if isinstance(topics, TopicPattern) else topics:
        if isinstance(topic, Topic):
            raise InvalidTopicError(
                f"read takes the name of a topic, not {topic!r}: pass {topic.name!r}. Values are bytes: "
                "`topic.decode(record.value)` decodes them"
            )
    if isinstance(topics, TopicPattern) or len(topics) > 1:
        if isinstance(start, Mapping | Position):
            check_position_for_several(position_of(start), f"start={start!r}")
        if partitions is not None:
            raise ConfigError(f"partitions={partitions!r} needs one topic, not {described(topics)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise ConfigError(f"limit={limit!r} must be an integer >= 0, or None for all records")
    check_seconds(timeout_s, "timeout_s")
    if isinstance(start, Mapping):
        for partition, offset in start.items():
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise ConfigError(f"start={{{partition!r}: {offset!r}}}: an offset is an integer")
    if partitions is not None and (isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable)):
        raise ConfigError(f"partitions={partitions!r} must be a list of partitions, such as [0, 1]")


def position_of(start: Start) -> Position:
    """The position for `start`; for a mapping, one at an unspecified pointer."""
    if isinstance(start, Position):
        return start
    if isinstance(start, datetime.datetime):
        return Position.at_time(start)
    if start == PositionKind.EARLIEST:
        return Position.EARLIEST
    if start == PositionKind.LATEST:
        return Position.LATEST
    if isinstance(start, Mapping):
        return Position(PositionKind.POINTER)
    raise ConfigError(
        f'{start!r} is not a start: use "earliest", "latest", a datetime, Position.at_time(milliseconds), '
        "Position.at_pointer(offset), or an offset for each partition, {0: 42}"
    )


def chosen_partitions(topic: str, there: Sequence[int], start: Start, asked: Iterable[int] | None) -> tuple[int, ...]:
    """The partitions to read. Raises UnknownTopicError if one is missing, ConfigError if one has no start."""
    if asked is None:
        chosen = tuple(sorted(start)) if isinstance(start, Mapping) else tuple(there)
    else:
        chosen = tuple(sorted(set(asked)))
    missing = set(chosen) - set(there)
    if missing:
        raise UnknownTopicError(
            f"topic {topic!r} has no partition {min(missing)}: it has {len(there)}, numbered from 0 to {len(there) - 1}"
        )
    if isinstance(start, Mapping) and not set(chosen) <= set(start):
        raise ConfigError(f"start has no offset for partition {min(set(chosen) - set(start))} of topic {topic!r}")
    return chosen
