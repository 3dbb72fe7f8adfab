"""A stream whose records follow from their place, so that any process can read it, and knows what must come."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from penstock.abc import Feature, Features
from penstock.errors import UnknownTopicError
from penstock.model import Batch, NewRecord, Pointer, Position, PositionKind, Receipt, Record
from penstock.model.clock import SystemClock, wait_on


class CountingStream:
    """`abc.TopicStream`: the record at pointer n of partition p has the value `p:n`. It ends at `count`, which may
    grow.

    It has no feed of its own. `reads` holds what was asked of it, and `failures` what the next reads of a partition
    shall fail with.
    """

    def __init__(self, topic: str = "orders", partitions: int = 1, count: int = 0) -> None:
        self._topic = topic
        self._partitions = partitions
        self._count = count
        self._changed = threading.Condition()
        self.reads: list[tuple[int, Pointer]] = []
        self.failures: dict[int, list[Exception]] = {}

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def features(self) -> Features:
        return frozenset({Feature.PARTITIONS, Feature.DURABLE})

    def grow(self, *, count: int = 0, partitions: int = 0) -> None:
        with self._changed:
            self._count += count
            self._partitions += partitions
            self._changed.notify_all()

    def partitions(self) -> Sequence[int]:
        if not self._partitions:
            raise UnknownTopicError(f"there is no topic {self._topic!r} yet")
        return range(self._partitions)

    def locate(self, partition: int, position: Position) -> Pointer:
        if position.kind is PositionKind.POINTER:
            return int(position.pointer)
        return self._count if position == Position.LATEST else 0

    def span(self, partition: int) -> tuple[Pointer, Pointer]:
        return 0, self._count

    def read(self, partition: int, start: Pointer, limit: int, wait_s: float) -> Batch:
        clock = SystemClock()
        until_s = clock.monotonic_s() + wait_s
        with self._changed:
            self.reads.append((partition, start))
            if self.failures.get(partition):
                raise self.failures[partition].pop(0)
            while start >= self._count and (left_s := until_s - clock.monotonic_s()) > 0:
                wait_on(clock, self._changed, left_s)
            next_ = max(start, min(self._count, start + limit))
        records = [Record(self._topic, partition, n, None, b"%d:%d" % (partition, n)) for n in range(start, next_)]
        return Batch(self._topic, partition, start, next_, records)

    def append(self, records: Sequence[NewRecord]) -> Sequence[Receipt]:
        raise NotImplementedError("its records are there from the beginning")

    def close(self) -> None: ...
