"""Counting: what was sent, what was acknowledged, and what came back."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

SEPARATOR: Final = b":"
VALUE_BYTES: Final = 100
"""Values are filled up with spaces to this length."""


@dataclass(frozen=True, slots=True)
class Verdict:
    sent: int
    acknowledged: int
    read: int
    lost: int
    """Acknowledged, but missing."""
    duplicates: int
    """Stored more than once, at different offsets."""
    out_of_order: int
    """Read after a record of the same key that was sent later."""

    @property
    def holds(self) -> bool:
        return self.sent == self.acknowledged and not (self.lost or self.duplicates or self.out_of_order)


class Tally:
    """Counts records, which are numbered per producer; a record names its producer and number.

    One thread per producer may send and acknowledge, and one may read.
    """

    def __init__(self, producers: int, keys: int) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._sent = [0] * producers
        self._acknowledged = [bytearray() for _ in range(producers)]
        self._acknowledged_count = 0
        self._read = [bytearray() for _ in range(producers)]
        self._read_count = 0
        self._places: set[tuple[int, int]] = set()
        self._last_of_key: dict[tuple[int, int], int] = {}
        self._out_of_order = 0

    @property
    def sent(self) -> int:
        return sum(self._sent)

    @property
    def acknowledged(self) -> int:
        return self._acknowledged_count

    @property
    def read(self) -> int:
        """How many records were read, each offset counted once."""
        return self._read_count

    def next_record(self, producer: int) -> tuple[int, bytes, bytes]:
        number = self._sent[producer]
        self._sent[producer] = number + 1
        value = b"%d%b%d" % (producer, SEPARATOR, number)
        return number, b"%d-%d" % (producer, number % self._keys), value.ljust(VALUE_BYTES)

    def acknowledge(self, producer: int, number: int) -> None:
        seen = self._acknowledged[producer]
        with self._lock:
            _mark(seen, number)
            self._acknowledged_count += 1

    def see(self, partition: int, offset: int, value: bytes | None) -> None:
        """Count a record that was read. A redelivery of the same offset does not count."""
        if (partition, offset) in self._places:
            return
        self._places.add((partition, offset))
        producer_text, _, number_text = (value or b"").partition(SEPARATOR)
        producer, number = int(producer_text), int(number_text)
        self._read_count += 1
        if _mark(self._read[producer], number) > 1:
            return
        key = (producer, number % self._keys)
        if number < self._last_of_key.get(key, -1):
            self._out_of_order += 1
        self._last_of_key[key] = max(number, self._last_of_key.get(key, -1))

    def verdict(self) -> Verdict:
        lost = duplicates = 0
        for acknowledged, read in zip(self._acknowledged, self._read, strict=True):
            read.extend(bytes(max(0, len(acknowledged) - len(read))))
            lost += sum(1 for number, count in enumerate(acknowledged) if count and not read[number])
            duplicates += sum(count - 1 for count in read if count > 1)
        return Verdict(
            sent=self.sent,
            acknowledged=self._acknowledged_count,
            read=self._read_count,
            lost=lost,
            duplicates=duplicates,
            out_of_order=self._out_of_order,
        )


def _mark(counts: bytearray, number: int) -> int:
    """Increment the count of this number, which stops at 255."""
    if number >= len(counts):
        counts.extend(bytes(number + 1 - len(counts) + len(counts) // 2))
    counts[number] = min(255, counts[number] + 1)
    return counts[number]
