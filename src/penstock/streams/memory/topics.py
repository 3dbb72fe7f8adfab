"""Topics in memory: their records, those who wait for more of them, and the memories of this process by name."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock
from penstock.errors import (
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownTopicError,
)
from penstock.model import Batch, NewRecord, Pointer, Receipt, Record, check_topic_name
from penstock.model.clock import SystemClock, wait_on
from penstock.streams.adapting.stream_base import checked_partitions, chosen_partition

LONGEST_WAIT_S: Final = 3600.0 * 24 * 365


class Partition:
    """The records of one partition. There may be pointers without a record between them."""

    __slots__ = ("end", "first", "latest_ms", "pointers", "records")

    def __init__(self) -> None:
        self.first: Pointer = 0
        self.end: Pointer = 0
        self.records: list[Record] = []
        self.pointers: list[Pointer] = []
        self.latest_ms: list[int] = []
        """For each record, the largest timestamp so far: ascending, for binary search."""

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
        """The records from there on, and where to continue after them."""
        begin = bisect_left(self.pointers, start)
        found = self.records[begin : begin + limit]
        if begin + len(found) == len(self.records):
            return found, self.end
        return found, found[-1].offset + 1

    def at_time(self, time_ms: int) -> Pointer:
        index = bisect_left(self.latest_ms, time_ms)
        return self.pointers[index] if index < len(self.pointers) else self.end


class Topic:
    """The partitions of one topic. Thread-safe, unless a method says otherwise."""

    def __init__(self, name: str, partitions: int, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.changed = threading.Condition()
        """Held for every access; notified about new records and when waiting must end."""
        self.deleted = False
        self._partitions = [Partition() for _ in range(partitions)]
        self._turn = 0

    @property
    def partition_count(self) -> int:
        return len(self._partitions)

    def partition(self, number: int) -> Partition:
        """The caller holds `changed`."""
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
        """Store the records and settle their receipts. Returns False, and stores nothing, if the topic was deleted."""
        settled: list[tuple[Receipt, int, int, DeliveryError | None]] = []
        with self.changed:
            if self.deleted:
                return False
            now_ms = self.clock.wall_ms()
            count = len(self._partitions)
            self._turn += 1  # records without a key that are appended together stay together
            for record, receipt in zip(records, receipts, strict=True):
                number = chosen_partition(record, self._turn, count)
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
        for receipt, number, offset, error in settled:  # not while holding `changed`: callbacks may use the topic
            receipt.settle(number, offset, error)
        return True

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

    def at_time(self, number: int, time_ms: int) -> Pointer:
        with self.changed:
            return self.partition(number).at_time(time_ms)

    def check_in_range(self, number: int, start: Pointer) -> Partition:
        """The caller holds `changed`."""
        partition = self.partition(number)
        if not partition.first <= start <= partition.end:
            raise OffsetOutOfRangeError(f"{self.name}-{number}", start, partition.first, partition.end)
        return partition

    def wait(self, until_s: float) -> bool:
        """Wait for a change. Returns False at the deadline. The caller holds `changed`."""
        left_s = min(until_s - self.clock.monotonic_s(), LONGEST_WAIT_S)
        if left_s <= 0:
            return False
        wait_on(self.clock, self.changed, left_s)
        return True

    def batch(self, number: int, start: Pointer, limit: int) -> Batch:
        """The caller holds `changed`, and has checked that the start is in range."""
        records, following = self._partitions[number].from_pointer(start, limit)
        return Batch(self.name, number, start, following, records)


class Topics:
    """All topics of one memory, which several `MemoryStream` may share."""

    def __init__(self, partitions: int = 1, clock: Clock | None = None) -> None:
        self.partitions = checked_partitions(partitions, 1)
        """The default number of partitions."""
        self.clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._topics: dict[str, Topic] = {}

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._topics)

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def find(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r} in memory; it is created when a record is sent to it")
        return topic

    def find_or_create(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is not None:
            return topic
        check_topic_name(name)
        with self._lock:
            return self._topics.setdefault(name, Topic(name, self.partitions, self.clock))

    def create(self, name: str, partitions: int | None) -> None:
        check_topic_name(name)
        count = checked_partitions(partitions, self.partitions)
        with self._lock:
            if name in self._topics:
                raise TopicExistsError(f"topic {name!r} exists already")
            self._topics[name] = Topic(name, count, self.clock)

    def delete(self, name: str) -> None:
        with self._lock:
            topic = self._topics.pop(name, None)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r} in memory")
        topic.delete()


_named: Final[dict[str, Topics]] = {}
_naming: Final = threading.Lock()


def topics_named(name: str) -> Topics:
    """The memory of this name, which lasts as long as the process."""
    with _naming:
        return _named.setdefault(name, Topics())
