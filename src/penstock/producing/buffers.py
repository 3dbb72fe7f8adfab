"""Buffers of a producer: numbered records in memory, and the interface of every buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from penstock.abc import Buffer, Features
from penstock.errors import BufferFullError, ConfigError
from penstock.model import NewRecord

_new: Callable[..., BufferedRecord] = tuple.__new__
"""Creates a BufferedRecord in a third of the time."""

RECORD_OVERHEAD_BYTES = 80
"""The overhead of a buffered record beside its own bytes: about the same in memory and in a spool's file."""


class BufferedRecord(NamedTuple):
    """A record in a buffer (`abc.Buffered`)."""

    sequence: int
    record: NewRecord
    together_with: int
    """The number of the last record that was put together with it. They share one transaction if there are
    transactions."""
    size_bytes: int = 0
    """Its size in the buffer."""


def size_of(record: NewRecord) -> int:
    """The size of a record in the buffer."""
    size = RECORD_OVERHEAD_BYTES + len(record.topic)
    if record.value is not None:
        size += len(record.value)
    if record.key is not None:
        size += len(record.key)
    if record.headers:
        size += sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
    return size


class NumberedRecords:
    """Numbered records, with holes where some were dropped. Not thread-safe: the owner has a lock."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        """The first number that is not committed."""
        self.end = start
        """The number after the last record."""
        self.size_bytes = 0
        self._entries: dict[int, BufferedRecord] = {}
        self._holes: list[tuple[int, int]] = []
        """Numbers without a record, `(first, end)`, ascending."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: int, records: Sequence[NewRecord], size_bytes: int) -> None:
        """Append records. If `sequence` is not the next number, the numbers in between have no records."""
        if sequence > self.end:
            self._add_hole(self.end, sequence)
        if len(records) == 1:
            self._entries[sequence] = _new(BufferedRecord, (sequence, records[0], sequence, size_bytes))
        else:
            last = sequence + len(records) - 1
            for number, record in enumerate(records, sequence):
                self._entries[number] = BufferedRecord(number, record, last, size_of(record))
        self.end = sequence + len(records)
        self.size_bytes += size_bytes

    def peek(self, after: int, limit: int, limit_bytes: int) -> list[BufferedRecord]:
        """The records after number `after`, at least one if there is one."""
        found: list[BufferedRecord] = []
        left_bytes = limit_bytes
        number = max(after + 1, self.start)
        entries = self._entries
        while number < self.end and len(found) < limit:
            entry = entries.get(number)
            if entry is None:
                number = self._behind_hole(number)
                continue
            left_bytes -= entry[3]
            if left_bytes < 0 and found:
                break
            found.append(entry)
            number += 1
        return found

    def commit(self, through: int) -> int:
        """Remove everything up to this number. Returns how many records were removed."""
        before = len(self._entries)
        size = 0
        number = self.start
        stop = min(through + 1, self.end)
        pop = self._entries.pop
        while number < stop:
            entry = pop(number, None)
            if entry is None:
                number = self._behind_hole(number)
                continue
            size += entry[3]
            number += 1
        self.size_bytes -= size
        self.start = max(self.start, through + 1)
        self.end = max(self.end, self.start)
        if self._holes:
            self._holes = [(first, end) for first, end in self._holes if end > self.start]
        return before - len(self._entries)

    def drop(self, count: int, after: int) -> list[BufferedRecord]:
        """Remove and return the oldest records after `after`."""
        dropped: list[BufferedRecord] = []
        number = max(after + 1, self.start)
        while number < self.end and len(dropped) < count:
            entry = self._entries.pop(number, None)
            if entry is None:
                number = self._behind_hole(number)
                continue
            self.size_bytes -= entry[3]
            dropped.append(entry)
            number += 1
        if dropped:
            self._add_hole(dropped[0].sequence, dropped[-1].sequence + 1)
        return dropped

    def _behind_hole(self, number: int) -> int:
        for first, end in self._holes:
            if first <= number < end:
                return end
        raise AssertionError(f"record {number} is neither here nor dropped")

    def _add_hole(self, first: int, end: int) -> None:
        apart = [hole for hole in self._holes if hole[1] < first or hole[0] > end]
        touching = [hole for hole in self._holes if not (hole[1] < first or hole[0] > end)]
        apart.append((min([first, *(start for start, _ in touching)]), max([end, *(stop for _, stop in touching)])))
        self._holes = sorted(apart)


class MemoryBuffer:
    """`abc.Buffer` in memory, with limits on records and bytes."""

    def __init__(self, limit_records: int = 1_000_000, limit_bytes: int = 256 << 20) -> None:
        if limit_records < 1 or limit_bytes < 1:
            raise ConfigError(
                f"a buffer needs limits of at least 1 record and 1 byte, not {limit_records} and {limit_bytes}"
            )
        self._limit_records = limit_records
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._kept = NumberedRecords()

    @property
    def features(self) -> Features:
        return frozenset()

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self._kept.end

    def put(self, records: Sequence[NewRecord]) -> int:
        size = size_of(records[0]) if len(records) == 1 else sum(map(size_of, records))
        kept = self._kept
        with self._lock:
            if len(kept) + len(records) > self._limit_records or kept.size_bytes + size > self._limit_bytes:
                raise BufferFullError(
                    f"the buffer holds {len(kept)} of {self._limit_records} records and {kept.size_bytes} of "
                    f"{self._limit_bytes} bytes: {len(records)} more do not fit"
                )
            sequence = kept.end
            kept.add(sequence, records, size)
        return sequence

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[BufferedRecord]:
        with self._lock:
            return self._kept.peek(after, limit, limit_bytes)

    def commit(self, through: int) -> None:
        with self._lock:
            self._kept.commit(min(through, self._kept.end - 1))

    def drop(self, count: int, after: int = -1) -> Sequence[BufferedRecord]:
        with self._lock:
            return self._kept.drop(count, after)

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        return self._kept.size_bytes

    def close(self) -> None:
        """Discard everything that was not committed."""
        with self._lock:
            self._kept = NumberedRecords(self._kept.end)


class NumberedBuffer(Protocol):
    """`abc.Buffer` that knows the number of the next record, and which records were put together."""

    @property
    def features(self) -> Features: ...

    @property
    def end(self) -> int: ...

    def put(self, records: Sequence[NewRecord]) -> int: ...

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[BufferedRecord]: ...

    def commit(self, through: int) -> None: ...

    def drop(self, count: int, after: int = -1) -> Sequence[BufferedRecord]: ...

    def __len__(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class ForeignBuffer:
    """Wraps a user's buffer, which does not know which records were put together."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()
        self.id: str | None = getattr(buffer, "id", None)
        self.folder = getattr(buffer, "folder", None)
        self.end = 0
        while found := buffer.peek(self.end - 1, 1000, 1 << 20):  # ends: nothing puts records yet
            self.end = found[-1].sequence + 1

    @property
    def features(self) -> Features:
        return self._buffer.features

    def put(self, records: Sequence[NewRecord]) -> int:
        sequence = self._buffer.put(records)
        with self._lock:
            self.end = max(self.end, sequence + len(records))
        return sequence

    def peek(self, after: int, limit: int, limit_bytes: int) -> Sequence[BufferedRecord]:
        return [
            BufferedRecord(each.sequence, each.record, each.sequence)
            for each in self._buffer.peek(after, limit, limit_bytes)
        ]

    def commit(self, through: int) -> None:
        self._buffer.commit(through)

    def drop(self, count: int, after: int = -1) -> Sequence[BufferedRecord]:
        return [BufferedRecord(each.sequence, each.record, each.sequence) for each in self._buffer.drop(count, after)]

    def __len__(self) -> int:
        return len(self._buffer)

    @property
    def size_bytes(self) -> int:
        return self._buffer.size_bytes
