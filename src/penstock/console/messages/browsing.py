"""Pages of messages over all partitions of a topic, merged by time, forwards and backwards.

A partition is only read from front to back. Forwards, the partitions are read side by side, and the oldest of their
first records is next. Backwards, each yields chunks from further and further back, and the newest of their last records
is next. A record that was read is kept as a row of a few kilobytes, or not at all where it does not match.
Feeds prefetch little, so that a topic of large records does not fill the memory.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from penstock.abc import Browsing, Feed
from penstock.console.link import Link
from penstock.console.messages.view_settings import ViewSettings
from penstock.console.views import MessageRow
from penstock.errors import OffsetOutOfRangeError
from penstock.model import Pointer, Record
from penstock.streams.reading import RoundRobinFeed

_SHORT_MS: Final = 5
"""While the broker waits for more at the end of one partition, it sends nothing of the others."""


@dataclass(slots=True)
class Budget:
    """How much may be read for one page, and how much has been."""

    records: int
    size_bytes: int
    time_s: float
    """How long to read, from the first record on."""
    silent_s: float
    """How long to wait for the first record: a slow broker answers several requests before it."""
    scanned: int = 0
    scanned_bytes: int = 0
    begun_s: float = field(default_factory=time.monotonic)
    first_s: float | None = None

    def spend(self, size_bytes: int) -> None:
        if self.first_s is None:
            self.first_s = time.monotonic()
        self.scanned += 1
        self.scanned_bytes += size_bytes

    def refund(self, records: int, size_bytes: int) -> None:
        """Give back the cost of records that will be read again."""
        self.scanned -= records
        self.scanned_bytes -= size_bytes

    @property
    def left_s(self) -> float:
        until_s = self.begun_s + self.silent_s if self.first_s is None else self.first_s + self.time_s
        return max(0.0, until_s - time.monotonic())

    @property
    def is_spent(self) -> bool:
        return self.scanned >= self.records or self.scanned_bytes >= self.size_bytes or self.left_s <= 0

    def note(self) -> str:
        """Where the search stopped, as text for people."""
        took_s = time.monotonic() - self.begun_s
        size = f"{self.scanned_bytes / 1e6:,.0f} MB" if self.scanned_bytes >= 1e6 else f"{self.scanned_bytes:,} bytes"
        return f"stopped after {self.scanned:,} records ({size}) in {took_s:.1f} s: continue from here?"


def size_of(record: Record) -> int:
    size_bytes = len(record.key or b"") + len(record.value or b"")
    for name, content in record.headers:
        size_bytes += len(name) + len(content or b"")
    return size_bytes


def bounded_feed(link: Link, topic: str, partitions: Iterable[int], *, fetch_wait_ms: int = _SHORT_MS) -> Feed:
    """A feed of committed records that prefetches little, of existing partitions. The caller closes it."""
    opened = link.connection().open_topic(topic)
    if isinstance(opened, Browsing):
        return opened.browse(partitions, "committed", fetch_wait_ms)
    return RoundRobinFeed(opened)


_SMALL_BYTES: Final = 16 * 1024
"""A record up to this size may be kept until its row is needed; of a larger one, only the row is kept."""

_POLL_RECORDS: Final = 1_000
_POLL_S: Final = 0.2
_BUFFERED: Final = 200
"""A partition with this many rows waiting for the other partitions is not read on for now."""
_ROUND_BYTES: Final = 16 * 1024 * 1024
"""Chunks that turn out larger than this in total are read again in smaller pieces."""
_LARGEST_CHUNK: Final = 10_000
_PARTS: Final = 64
"""Where pointers do not count records, reading backwards begins with one such part of a partition."""
_MOST_SEEKS: Final = 100


class Scan(NamedTuple):
    """What reads the records, selects them, and limits the reading."""

    feed: Feed
    view: ViewSettings
    budget: Budget


class _Item(NamedTuple):
    """A record that was read. The older of two is less."""

    timestamp_ms: int
    partition: int
    pointer: Pointer
    seen: MessageRow | Record | None
    """None: it does not match."""


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """Rows, oldest first, and where reading ended in each partition."""

    rows: list[MessageRow]
    reached: dict[int, Pointer]
    """Forwards: where to continue. Backwards: everything from here on has been read."""
    is_complete: bool


def newer(scan: Scan, starts: Mapping[int, Pointer], ends: Mapping[int, Pointer], limit: int) -> FoundMessages:
    """The next `limit` rows from these offsets on."""
    merge = _Newer(scan, starts, ends)
    rows = _merged(merge, limit, scan)
    reached = merge.reached()
    is_at_end = all(reached[partition] >= ends[partition] for partition in reached)
    return FoundMessages(rows, reached, len(rows) >= limit or is_at_end)


class _Merge(Protocol):
    @property
    def is_starved(self) -> bool:
        """Whether a partition with more records has none here: until it does, the next record is unknown."""

    def read(self) -> None:
        """Read more of those partitions, for a slice of time."""

    def pop(self) -> _Item | None:
        """The next of the records that are here; None when there are none."""


def _merged(merge: _Merge, limit: int, scan: Scan) -> list[MessageRow]:
    """Rows in order, as many as the budget allows. If it allows none, a few in the order in which they came, so that
    continuing from there makes progress."""
    rows: list[MessageRow] = []
    is_begun = is_forced = False
    while len(rows) < limit:
        if merge.is_starved and not is_forced:
            if not scan.budget.is_spent:
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
            rows.append(_row(item.seen, scan.view))
    return rows


class _Newer:
    """The partitions, read side by side."""

    def __init__(self, scan: Scan, starts: Mapping[int, Pointer], ends: Mapping[int, Pointer]) -> None:
        self._feed, self._view, self._budget = scan
        self._ends = ends
        self._read = dict(starts)
        self._taken = dict(starts)
        self._waiting: dict[int, deque[_Item]] = {partition: deque() for partition in starts}
        self._heads: list[_Item] = []
        self._seeks = 0
        self._starved = {partition for partition, start in starts.items() if start < ends[partition]}
        for partition in self._starved:
            self._feed.add(partition, starts[partition])

    @property
    def is_starved(self) -> bool:
        return bool(self._starved)

    def pop(self) -> _Item | None:
        """The oldest of the partitions' first records."""
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
                    return  # the rest is read again by the next page
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
        item = _item(record, size_bytes, self._view)
        waiting = self._waiting[record.partition]
        waiting.append(item)
        self._read[record.partition] = record.offset + 1
        if len(waiting) == 1:
            heapq.heappush(self._heads, item)
            self._starved.discard(record.partition)

    def _seek(self, error: OffsetOutOfRangeError) -> None:
        """Continue at the first existing record: retention was faster."""
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
    scan: Scan,
    starts: Mapping[int, Pointer],
    before: Mapping[int, Pointer],
    limit: int,
    *,
    is_counted: bool = True,
) -> FoundMessages:
    """The newest `limit` rows of all partitions before these offsets, not before `starts`. `is_counted`: pointers are
    offsets, so that it is known how far back these rows are."""
    merge = _Older(scan, starts, before, limit, is_counted=is_counted)
    rows = _merged(merge, limit, scan)
    rows.reverse()
    reached = merge.reached()
    is_at_start = all(reached[partition] <= starts[partition] for partition in reached)
    return FoundMessages(rows, reached, len(rows) >= limit or is_at_start)


class _Older:
    """The partitions, each known from some offset on."""

    def __init__(
        self,
        scan: Scan,
        starts: Mapping[int, Pointer],
        before: Mapping[int, Pointer],
        limit: int,
        *,
        is_counted: bool,
    ) -> None:
        self._scan = scan
        self._is_counted = is_counted
        self._starts = starts
        self._low = dict(before)
        self._taken = dict(before)
        self._known: dict[int, list[_Item]] = {partition: [] for partition in before}
        chunk = limit // max(1, len(before)) + 2
        self._chunks = dict.fromkeys(before, min(chunk, _LARGEST_CHUNK))
        if not is_counted:
            self._chunks = {each: max(1, (end - starts[each]) // _PARTS) for each, end in before.items()}

    def pop(self) -> _Item | None:
        """The newest of the partitions' last records."""
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
        """Read the next chunk of every partition that has no records here and more further back."""
        wanted = {
            partition: max(self._starts[partition], low - self._chunks[partition])
            for partition, low in self._low.items()
            if self._is_wanted(partition)
        }
        chunks = _Chunks(self._scan, wanted, self._low, is_counted=self._is_counted)
        for partition, items in chunks.read().items():
            chunk = self._chunks[partition]
            if items is not None:
                self._known[partition] = items
                self._low[partition] = wanted[partition]
                self._chunks[partition] = min(2 * chunk, _LARGEST_CHUNK) if self._is_counted else 4 * chunk
            else:
                affordable = chunks.affordable() if self._is_counted else chunk
                self._chunks[partition] = max(1, min(chunk // 8, affordable))

    def reached(self) -> dict[int, Pointer]:
        return {
            partition: self._taken[partition] if known else min(self._taken[partition], self._low[partition])
            for partition, known in self._known.items()
        }

    def _is_wanted(self, partition: int) -> bool:
        return not self._known[partition] and self._low[partition] > self._starts[partition]


class _Chunks:
    """One round of reading backwards: everything between two offsets of some partitions."""

    def __init__(
        self, scan: Scan, lows: Mapping[int, Pointer], highs: Mapping[int, Pointer], *, is_counted: bool
    ) -> None:
        self._feed, self._view, self._budget = scan
        self._is_counted = is_counted
        self._lows = lows
        self._highs = highs
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
        """How many records a chunk may have, judging by those that were read."""
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
            self._items[partition].append(_item(record, size_bytes, self._view))
        if next >= high:
            self._open.discard(partition)
            self._feed.remove(partition)

    @property
    def _size_bytes(self) -> int:
        return sum(self._sizes.values())

    def _is_too_large(self) -> bool:
        """Whether to abandon the open chunks. A chunk of one record is never too large."""
        has_many = not self._is_counted and sum(map(len, self._items.values())) > _LARGEST_CHUNK
        if self._size_bytes < _ROUND_BYTES and not has_many:
            return self._budget.is_spent
        return self._budget.is_spent or any(self._highs[each] - self._lows[each] > 1 for each in self._open)

    def _seek(self, error: OffsetOutOfRangeError) -> None:
        if error.start >= self._highs[error.partition]:
            self._open.discard(error.partition)
        elif error.partition in self._open:
            self._feed.add(error.partition, error.start)


def _item(record: Record, size_bytes: int, view: ViewSettings) -> _Item:
    seen: MessageRow | Record | None = None
    if view.wants(record, size_bytes):
        seen = record if size_bytes <= _SMALL_BYTES else view.row(record, size_bytes)
    timestamp_ms = -1 if record.timestamp_ms is None else record.timestamp_ms
    return _Item(timestamp_ms, record.partition, record.offset, seen)


def _row(seen: MessageRow | Record, view: ViewSettings) -> MessageRow:
    return view.row(seen, size_of(seen)) if isinstance(seen, Record) else seen
