"""Records in memory by their number: what a buffer holds, or as much of a spool as is worth holding twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.model import NewRecord

_new: Callable[..., Held] = tuple.__new__
"""Makes a Held in a third of the time."""

RECORD_OVERHEAD_BYTES = 80
"""What a record takes in a buffer beside its own bytes: about the same in memory and in a spool's file."""


class Held(NamedTuple):
    """A record in a buffer (`abc.Buffered`)."""

    sequence: int
    record: NewRecord
    together_with: int
    """The number of the last record that was put together with it. They share one transaction where there are any."""
    size_bytes: int = 0
    """What it counts for in the buffer."""


def size_of(record: NewRecord) -> int:
    """The bytes that a record counts for."""
    size = RECORD_OVERHEAD_BYTES + len(record.topic)
    if record.value is not None:
        size += len(record.value)
    if record.key is not None:
        size += len(record.key)
    if record.headers:
        size += sum(len(name) + len(value or b"") + 8 for name, value in record.headers)
    return size


class Kept:
    """A run of numbered records, with holes where some were dropped. Not for several threads: its owner has a lock."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        """The first number that is not committed."""
        self.end = start
        """Behind the last record here."""
        self.size_bytes = 0
        self._entries: dict[int, Held] = {}
        self._holes: list[tuple[int, int]] = []
        """Numbers without a record, `(first, end)`, ascending."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: int, records: Sequence[NewRecord], size_bytes: int) -> None:
        """Add records behind the last; where `sequence` is further on, there are none in between."""
        if sequence > self.end:
            self._add_hole(self.end, sequence)
        if len(records) == 1:
            self._entries[sequence] = _new(Held, (sequence, records[0], sequence, size_bytes))
        else:
            last = sequence + len(records) - 1
            for number, record in enumerate(records, sequence):
                self._entries[number] = Held(number, record, last, size_of(record))
        self.end = sequence + len(records)
        self.size_bytes += size_bytes

    def peek(self, after: int, limit: int, limit_bytes: int) -> list[Held]:
        """The records behind number `after`, at least one if there is one."""
        found: list[Held] = []
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
        """Let go of everything up to this number. Gives how many records that were."""
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

    def drop(self, count: int, after: int) -> list[Held]:
        """Take the oldest records behind `after` out, and give them."""
        dropped: list[Held] = []
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
