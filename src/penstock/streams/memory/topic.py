"""The records of a topic in memory, and who waits for more of them."""

from __future__ import annotations

import itertools
import threading
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock
from penstock.errors import ConfigError, DeliveryError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record
from penstock.model.clock import wait_on

LONGEST_WAIT_S: Final = 3600.0 * 24 * 365


class Partition:
    """The records of one partition, ascending. Pointers without a record may lie between them."""

    __slots__ = ("end", "first", "latest_ms", "pointers", "records")

    def __init__(self) -> None:
        self.first: Pointer = 0
        self.end: Pointer = 0
        self.records: list[Record] = []
        self.pointers: list[Pointer] = []
        self.latest_ms: list[int] = []
        """For each record, the largest timestamp up to it: ascending, so that a time is found by halving."""

    def add(self, record: Record, timestamp_ms: int) -> None:
        self.records.append(record)
        self.pointers.append(record.offset)
        self.latest_ms.append(max(timestamp_ms, self.latest_ms[-1]) if self.latest_ms else timestamp_ms)
        self.end = record.offset + 1

    def expire(self, before: Pointer) -> None:
        self.first = max(self.first, min(before, self.end))
        gone = bisect_left(self.pointers, self.first)
        del self.records[:gone], self.pointers[:gone]
        times = (record.timestamp_ms or 0 for record in self.records)
        self.latest_ms = list(itertools.accumulate(times, max))

    def from_pointer(self, start: Pointer, limit: int) -> tuple[list[Record], Pointer]:
        """The records from there on, and where to go on behind them."""
        begin = bisect_left(self.pointers, start)
        found = self.records[begin : begin + limit]
        if begin + len(found) == len(self.records):
            return found, self.end
        return found, found[-1].offset + 1

    def at_time(self, time_ms: int) -> Pointer:
        index = bisect_left(self.latest_ms, time_ms)
        return self.pointers[index] if index < len(self.pointers) else self.end


class Topic:
    """The partitions of one topic. All methods may be called from any thread, unless they say otherwise."""

    def __init__(self, name: str, partitions: int, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.changed = threading.Condition()
        """Held while anything is looked at or changed; notified when there is more, or an end to waiting."""
        self.deleted = False
        self._partitions = [Partition() for _ in range(partitions)]
        self._turn = 0

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def partition(self, number: int) -> Partition:
        """Called by who holds `changed`."""
        if self.deleted:
            raise UnknownTopicError(f"topic {self.name!r} was deleted")
        if not 0 <= number < len(self._partitions):
            raise UnknownTopicError(
                f"topic {self.name!r} has no partition {number}: it has {len(self._partitions)}, numbered from 0"
            )
        return self._partitions[number]

    def add_partitions(self, total: int) -> None:
        with self.changed:
            if total <= len(self._partitions):
                raise ConfigError(f"topic {self.name!r} has {len(self._partitions)} partitions already, not {total}")
            self._partitions.extend(Partition() for _ in range(total - len(self._partitions)))

    def append(self, records: Sequence[NewRecord], receipts: Sequence[Receipt]) -> bool:
        """Store the records and settle their receipts; False, and nothing is stored, when the topic was deleted."""
        settled: list[tuple[Receipt, int, int, DeliveryError | None]] = []
        with self.changed:
            if self.deleted:
                return False
            now_ms = self.clock.wall_ms()
            count = len(self._partitions)
            self._turn += 1
            for record, receipt in zip(records, receipts, strict=True):
                number = self._choose(record, count)
                if not 0 <= number < count:
                    reason = f"topic {self.name!r} has no partition {number}: it has {count}, numbered from 0"
                    settled.append((receipt, number, -1, DeliveryError(reason)))
                    continue
                partition = self._partitions[number]
                offset = partition.end
                stamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
                partition.add(
                    Record(self.name, number, offset, record.key, record.value, record.headers, stamp_ms), stamp_ms
                )
                settled.append((receipt, number, offset, None))
            self.changed.notify_all()
        for receipt, number, offset, error in settled:  # their callbacks may use the topic
            receipt.settle(number, offset, error)
        return True

    def _choose(self, record: NewRecord, count: int) -> int:
        if record.partition is not None:
            return record.partition
        if record.key is not None:
            return zlib.crc32(record.key) % count
        return self._turn % count  # all records without a key that are appended together stay together

    def skip(self, number: int, count: int) -> None:
        with self.changed:
            self.partition(number).end += count
            self.changed.notify_all()

    def expire(self, number: int, before: Pointer) -> None:
        with self.changed:
            self.partition(number).expire(before)
            self.changed.notify_all()

    def delete(self) -> None:
        with self.changed:
            self.deleted = True
            self.changed.notify_all()

    def wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def span(self, number: int) -> tuple[Pointer, Pointer]:
        with self.changed:
            partition = self.partition(number)
            return partition.first, partition.end

    def locate(self, number: int, position: Position) -> Pointer:
        with self.changed:
            partition = self.partition(number)
            match position.kind:
                case PositionKind.EARLIEST:
                    return partition.first
                case PositionKind.LATEST:
                    return partition.end
                case PositionKind.TIME:
                    return partition.at_time(position.time_ms)
                case PositionKind.POINTER:
                    return _as_pointer(position)

    def check_in_range(self, number: int, start: Pointer) -> Partition:
        """Called by who holds `changed`."""
        partition = self.partition(number)
        if not partition.first <= start <= partition.end:
            raise OffsetOutOfRangeError(f"{self.name}-{number}", start, partition.first, partition.end)
        return partition

    def wait(self, until_s: float) -> bool:
        """Wait for a change until this time; False when it has come. Called by who holds `changed`."""
        left_s = min(until_s - self.clock.monotonic_s(), LONGEST_WAIT_S)
        if left_s <= 0:
            return False
        wait_on(self.clock, self.changed, left_s)
        return True

    def batch(self, number: int, start: Pointer, limit: int) -> Batch:
        """Called by who holds `changed`, with a start that is in range."""
        records, following = self._partitions[number].from_pointer(start, limit)
        return Batch(self.name, number, start, following, records)


def _as_pointer(position: Position) -> Pointer:
    try:
        return int(position.pointer)
    except ValueError:
        raise ConfigError(f"{position.pointer!r} is no pointer of a memory stream: they are whole numbers") from None


def check_limit(limit: int) -> None:
    if limit < 1:
        raise StreamError(f"the limit {limit} is less than 1: nothing could be read")
