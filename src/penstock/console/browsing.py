"""Pages of messages over all partitions of a topic, merged by time, forwards and backwards.

A partition is only read from front to back. Forwards, the partitions are read side by side, and the oldest of their
heads is next. Backwards, each gives chunks from further and further back, and the newest of their tails is next. What
has been looked at is kept as a row of a few kilobytes, or as nothing where it does not match.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.console.lens import Lens
from penstock.console.scanning import Budget, size_of
from penstock.console.views import MessageRow
from penstock.errors import OffsetOutOfRangeError
from penstock.model import Pointer, Record
from penstock.streams.kafka.feed import KafkaFeed

_SMALL_BYTES: Final = 16 * 1024
"""A record of this size may be kept until its row is wanted; of a larger one, only the row is."""

_POLL_RECORDS: Final = 1_000
_POLL_S: Final = 0.2
_BUFFERED: Final = 200
"""A partition that has so many rows waiting for the others to catch up is not read on for now."""
_ROUND_BYTES: Final = 16 * 1024 * 1024
"""Chunks that turn out larger than this, all together, are begun again smaller."""
_LARGEST_CHUNK: Final = 10_000
_MOST_SEEKS: Final = 100


class _Item(NamedTuple):
    """A record that was looked at. Of two, the older one is less."""

    timestamp_ms: int
    partition: int
    pointer: Pointer
    seen: MessageRow | Record | None
    """None: it is not wanted."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows, oldest first, and where the way through each partition has ended."""

    rows: list[MessageRow]
    reached: dict[int, Pointer]
    """Forwards: where to go on. Backwards: everything from here on has been looked at."""
    is_complete: bool


def newer(
    feed: KafkaFeed, starts: Mapping[int, Pointer], ends: Mapping[int, Pointer], limit: int, lens: Lens, budget: Budget
) -> Found:
    """The next `limit` rows from these places on."""
    merge = _Newer(feed, starts, ends, lens, budget)
    rows = _merged(merge, limit, lens, budget)
    reached = merge.reached()
    is_at_end = all(reached[partition] >= ends[partition] for partition in reached)
    return Found(rows, reached, len(rows) >= limit or is_at_end)


class _Merge(Protocol):
    @property
    def is_starved(self) -> bool:
        """Whether of a partition that has more nothing is here: until it is, nobody knows which record is next."""

    def read(self) -> None:
        """Get more of those partitions, for a slice of time."""

    def pop(self) -> _Item | None:
        """The next record of those that are here; None when there are none."""


def _merged(merge: _Merge, limit: int, lens: Lens, budget: Budget) -> list[MessageRow]:
    """Rows in their order, as many as the budget allows. If it allows none, some all the same, in what order they came:
    so who goes on from there gets on."""
    rows: list[MessageRow] = []
    is_begun = is_forced = False
    while len(rows) < limit:
        if merge.is_starved and not is_forced:
            if not budget.is_spent:
                merge.read()
                continue
            if is_begun:
                break
            is_forced = True
        item = merge.pop()
        if item is None:
            break
        is_begun = True
        if item.seen is not None:
            rows.append(_row(item.seen, lens))
    return rows


class _Newer:
    """The partitions, side by side."""

    def __init__(
        self, feed: KafkaFeed, starts: Mapping[int, Pointer], ends: Mapping[int, Pointer], lens: Lens, budget: Budget
    ) -> None:
        self._feed = feed
        self._ends = ends
        self._lens = lens
        self._budget = budget
        self._read = dict(starts)
        self._taken = dict(starts)
        self._waiting: dict[int, deque[_Item]] = {partition: deque() for partition in starts}
        self._heads: list[_Item] = []
        self._seeks = 0
        self._starved = {partition for partition, start in starts.items() if start < ends[partition]}
        for partition in self._starved:
            feed.add(partition, starts[partition])

    @property
    def is_starved(self) -> bool:
        return bool(self._starved)

    def pop(self) -> _Item | None:
        """The oldest of the heads."""
        if not self._heads:
            return None
        item = heapq.heappop(self._heads)
        partition = item.partition
        self._taken[partition] = item.pointer + 1
        waiting = self._waiting[partition]
        waiting.popleft()
        if waiting:
            heapq.heappush(self._heads, waiting[0])
        elif self._read[partition] < self._ends[partition]:
            self._starved.add(partition)
            self._feed.resume(partition)
        return item

    def read(self) -> None:
        try:
            batches = self._feed.poll(_POLL_RECORDS, min(_POLL_S, self._budget.left_s))
        except OffsetOutOfRangeError as error:
            self._seek(error)
            return
        for batch in batches:
            partition = batch.partition
            if self._read.get(partition, 0) >= self._ends[partition]:
                continue
            for record in batch:
                if self._budget.is_spent:
                    return  # what is left of it is read again by who goes on from here
                if record.offset >= self._ends[partition]:
                    break
                self._add(record)
            self._read[partition] = min(batch.next, self._ends[partition])
            if self._read[partition] >= self._ends[partition]:
                self._starved.discard(partition)
                self._feed.remove(partition)
            elif len(self._waiting[partition]) >= _BUFFERED:
                self._feed.pause(partition)

    def reached(self) -> dict[int, Pointer]:
        return {
            partition: self._taken[partition] if waiting else max(self._taken[partition], self._read[partition])
            for partition, waiting in self._waiting.items()
        }

    def _add(self, record: Record) -> None:
        size_bytes = size_of(record)
        self._budget.spend(size_bytes)
        item = _item(record, size_bytes, self._lens)
        waiting = self._waiting[record.partition]
        waiting.append(item)
        self._read[record.partition] = record.offset + 1
        if len(waiting) == 1:
            heapq.heappush(self._heads, item)
            self._starved.discard(record.partition)

    def _seek(self, error: OffsetOutOfRangeError) -> None:
        """Retention was quicker: go on at what is left."""
        self._seeks += 1
        if self._seeks > _MOST_SEEKS:
            raise error
        partition = error.partition
        self._read[partition] = max(self._read[partition], error.start)
        if self._read[partition] < self._ends[partition]:
            self._feed.add(partition, self._read[partition])
        else:
            self._starved.discard(partition)


def older(
    feed: KafkaFeed,
    starts: Mapping[int, Pointer],
    before: Mapping[int, Pointer],
    limit: int,
    lens: Lens,
    budget: Budget,
) -> Found:
    """The `limit` rows before these places, newest of all partitions, and no further back than `starts`."""
    merge = _Older(feed, starts, before, limit, lens, budget)
    rows = _merged(merge, limit, lens, budget)
    rows.reverse()
    reached = merge.reached()
    is_at_start = all(reached[partition] <= starts[partition] for partition in reached)
    return Found(rows, reached, len(rows) >= limit or is_at_start)


class _Older:
    """The partitions, each known from some place on."""

    def __init__(
        self,
        feed: KafkaFeed,
        starts: Mapping[int, Pointer],
        before: Mapping[int, Pointer],
        limit: int,
        lens: Lens,
        budget: Budget,
    ) -> None:
        self._feed = feed
        self._starts = starts
        self._lens = lens
        self._budget = budget
        self._low = dict(before)
        self._taken = dict(before)
        self._known: dict[int, list[_Item]] = {partition: [] for partition in before}
        chunk = limit // max(1, len(before)) + 2
        self._chunks = dict.fromkeys(before, min(chunk, _LARGEST_CHUNK))

    def pop(self) -> _Item | None:
        """The newest of the tails."""
        tails = [known[-1] for known in self._known.values() if known]
        if not tails:
            return None
        item = max(tails)
        self._known[item.partition].pop()
        self._taken[item.partition] = item.pointer
        return item

    @property
    def is_starved(self) -> bool:
        return any(self._is_wanted(partition) for partition in self._low)

    def read(self) -> None:
        """Get the next chunk of every partition that has nothing here, and more further back."""
        wanted = {
            partition: max(self._starts[partition], low - self._chunks[partition])
            for partition, low in self._low.items()
            if self._is_wanted(partition)
        }
        chunks = _Chunks(self._feed, wanted, self._low, self._lens, self._budget)
        for partition, items in chunks.read().items():
            if items is not None:
                self._known[partition] = items
                self._low[partition] = wanted[partition]
                self._chunks[partition] = min(2 * self._chunks[partition], _LARGEST_CHUNK)
            else:
                self._chunks[partition] = max(1, min(self._chunks[partition] // 8, chunks.affordable()))

    def reached(self) -> dict[int, Pointer]:
        return {
            partition: self._taken[partition] if known else min(self._taken[partition], self._low[partition])
            for partition, known in self._known.items()
        }

    def _is_wanted(self, partition: int) -> bool:
        return not self._known[partition] and self._low[partition] > self._starts[partition]


class _Chunks:
    """One round of reading backwards: of some partitions, everything between two places."""

    def __init__(
        self, feed: KafkaFeed, lows: Mapping[int, Pointer], highs: Mapping[int, Pointer], lens: Lens, budget: Budget
    ) -> None:
        self._feed = feed
        self._lows = lows
        self._highs = highs
        self._lens = lens
        self._budget = budget
        self._items: dict[int, list[_Item]] = {partition: [] for partition in lows}
        self._sizes = dict.fromkeys(lows, 0)
        self._open = set(lows)

    def read(self) -> dict[int, list[_Item] | None]:
        """The items of each partition, oldest first; None where its chunk was too large, or time ran out."""
        for partition, low in self._lows.items():
            self._feed.add(partition, low)
        seeks = 0
        while self._open and not self._is_too_large() and self._budget.left_s > 0:
            try:
                for batch in self._feed.poll(_POLL_RECORDS, min(_POLL_S, self._budget.left_s)):
                    if batch.partition in self._open:
                        self._take(batch.partition, batch, batch.next)
            except OffsetOutOfRangeError as error:
                seeks += 1
                if seeks > _MOST_SEEKS:
                    raise
                self._seek(error)
        for partition in self._open:
            self._feed.remove(partition)
            self._budget.refund(len(self._items[partition]), self._sizes[partition])
        return {partition: None if partition in self._open else items for partition, items in self._items.items()}

    def affordable(self) -> int:
        """How many records a chunk may have, going by those that were read."""
        records = sum(map(len, self._items.values()))
        mean_bytes = max(1.0, self._size_bytes / max(1, records))
        return int(_ROUND_BYTES / mean_bytes / max(1, len(self._lows)))

    def _take(self, partition: int, records: Iterable[Record], next: Pointer) -> None:
        high = self._highs[partition]
        for record in records:
            if record.offset >= high:
                next = high
                break
            size_bytes = size_of(record)
            self._budget.spend(size_bytes)
            self._sizes[partition] += size_bytes
            self._items[partition].append(_item(record, size_bytes, self._lens))
        if next >= high:
            self._open.discard(partition)
            self._feed.remove(partition)

    @property
    def _size_bytes(self) -> int:
        return sum(self._sizes.values())

    def _is_too_large(self) -> bool:
        """Whether to give up what is open. A chunk of one record is never too large by itself."""
        if self._size_bytes < _ROUND_BYTES:
            return self._budget.is_spent
        return self._budget.is_spent or any(self._highs[each] - self._lows[each] > 1 for each in self._open)

    def _seek(self, error: OffsetOutOfRangeError) -> None:
        if error.start >= self._highs[error.partition]:
            self._open.discard(error.partition)
        elif error.partition in self._open:
            self._feed.add(error.partition, error.start)


def _item(record: Record, size_bytes: int, lens: Lens) -> _Item:
    seen: MessageRow | Record | None = None
    if lens.wants(record, size_bytes):
        seen = record if size_bytes <= _SMALL_BYTES else lens.row(record, size_bytes)
    timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
    return _Item(timestamp_ms, record.partition, record.offset, seen)


def _row(seen: MessageRow | Record, lens: Lens) -> MessageRow:
    return lens.row(seen, size_of(seen)) if isinstance(seen, Record) else seen
